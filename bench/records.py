"""Raw records: what a run wrote, found and read again. Nothing here trusts what it reads."""

import contextlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
STATUSES = ("ok", "failed", "skipped", "timeout", "interrupted", "diverged")


class RecordError(Exception):
    """A file that is no record of this version; the text is one line that says why."""


@dataclass(frozen=True)
class Record:
    """One run of one variant: `raw` as the variant wrote it, with the harness's own keys under `run`.

    raw["run"] holds: status (one of STATUSES), reason (one line, or None), command_id (one per `bench run`),
    order (position in the whole command, -1 for a reference run that nobody asked for), repeat (0-based),
    asked_world_size, launcher, argv, omp_num_threads, launched_at, wall_s, exit_code, load_average (just
    before), commit, dirty, code (see provenance.code_digest), harness (version), log (path from the record's
    folder), log_tail (last lines, unless ok), parity (see bench/parity.py, None for `single`). A run that
    failed before it wrote anything has `run`, `variant`, `config` and `environment` alone.
    """

    path: Path
    raw: dict[str, Any]

    @property
    def variant(self) -> str:
        return self.raw["variant"]

    @property
    def run(self) -> dict[str, Any]:
        return self.raw["run"]

    @property
    def status(self) -> str:
        return self.run["status"]

    @property
    def ok(self) -> bool:
        return self.status == "ok"


def to_json(value: Any) -> str:
    """Strict JSON of plain values: NaN and infinities become null, as other readers stumble over them."""
    return json.dumps(_strict(value), allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(record: Record) -> None:
    """Write the record, in whole or not at all, even when the power is cut; may raise OSError."""
    temporary = record.path.with_name(f".{record.path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(to_json(record.raw) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, record.path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read(path: Path) -> Record:
    """The record at `path`; raises RecordError when it is truncated, foreign or of another version."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path.name}: not read: {str(error).splitlines()[0]}") from None
    problem = _problem(raw)
    if problem:
        raise RecordError(f"{path.name}: {problem}")
    return Record(path, raw)


def read_all(folder: Path, pattern: str = "*.json") -> tuple[list[Record], list[str]]:
    """All records below `folder` by time of start, and a line for each file that is none."""
    records, problems = [], []
    for path in sorted(folder.rglob(pattern)):
        if path.name.startswith(".") or path.parent.name == "figures":
            continue
        try:
            records.append(read(path))
        except RecordError as error:
            problems.append(str(error))
    return sorted(
        records, key=lambda record: (record.raw.get("started_at") or "", record.path.name)
    ), problems


def latest(records: Iterable[Record]) -> dict[str, list[Record]]:
    """By variant, the records of its newest command (all its repeats)."""
    newest: dict[str, list[Record]] = {}
    for record in records:
        group = newest.setdefault(record.variant, [])
        if group and group[0].run.get("command_id") != record.run.get("command_id"):
            group.clear()
        group.append(record)
    return newest


def _problem(raw: Any) -> str | None:
    if not isinstance(raw, dict) or "schema" not in raw:
        return "is no record of a run"
    if raw["schema"] != SCHEMA:
        return f"has schema {raw['schema']!r}, this version reads {SCHEMA}"
    run = raw.get("run")
    if (
        not isinstance(raw.get("variant"), str)
        or not isinstance(run, dict)
        or run.get("status") not in STATUSES
    ):
        return "lacks its variant or the status of its run"
    if run["status"] == "ok" and not _has_measurements(raw):
        return "says ok but lacks its measurements"
    return None


def _has_measurements(raw: dict[str, Any]) -> bool:
    """Whether each rank left as many step times and losses as the record says steps."""
    ranks, steps = raw.get("ranks"), raw.get("steps")
    return (
        isinstance(ranks, list)
        and isinstance(steps, int)
        and len(ranks) == raw.get("world_size")
        and all(
            isinstance(part, dict) and isinstance(part.get(key), list) and len(part[key]) == steps
            for part in ranks
            for key in ("step_ms", "loss")
        )
    )
