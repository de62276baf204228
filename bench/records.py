"""Raw records: what a run wrote, found and read again. Nothing here trusts what it reads."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.files import replace_text

SCHEMA = 1
ONCE = ("limits.json",)  # what is measured once for a machine, and is no run
STATUSES = ("ok", "failed", "skipped", "timeout", "interrupted", "diverged")


class RecordError(Exception):
    """A file that is no record of this version; the text is one line that says why."""


@dataclass(frozen=True)
class Record:
    """One run of one variant: `raw` as the variant wrote it, with the harness's own keys under `run`.

    raw["run"] holds: status (one of STATUSES), reason (one line, or None), command_id (one per `bench run`),
    order (position in the whole command, -1 for a reference run that nobody asked for), repeat (0-based),
    asked_world_size, launcher, argv, omp_num_threads, launched_at, wall_s, exit_code (None when it was never
    started), load_average (just before), load_average_after, alone (whether no other `bench run` was at work
    on this machine when the command began; None when that is not known), commit, dirty, code (see
    provenance.code_digest), harness (version), log (path from the record's folder), log_tail (last lines,
    unless ok), parity (see bench/parity.py, None for `single`), study (its kind and what it was asked,
    for runs of `bench noise`, `bench scale`, ...; None, or absent in older records, for those of `bench
    run`). A run that failed before it wrote anything has `run`, `variant`, `config` and `environment` alone.
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
    replace_text(record.path, to_json(record.raw) + "\n")


def from_json(text: str) -> Any:
    """What `text` says; the NaN and Infinity of lax writers become None, as `to_json` would have put them."""
    return json.loads(text, parse_constant=lambda _: None)


def read(path: Path) -> Record:
    """The record at `path`; raises RecordError when it is truncated, foreign or of another version."""
    try:
        raw = from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path.name}: not read: {str(error).splitlines()[0]}") from None
    problem = _problem(raw)
    if problem:
        raise RecordError(f"{path.name}: {problem}")
    return Record(path, raw)


def read_all(folder: Path) -> tuple[list[Record], list[str]]:
    """All records below `folder`, studies too, by time of start; and a line for each file that is none."""
    below = (path for path in folder.rglob("*.json") if path.parent.name != "figures")
    return _read_each(filter(_should_be_a_run, below))


def read_in(folder: Path, pattern: str = "*.json") -> tuple[list[Record], list[str]]:
    """The records that lie in `folder` itself, as `read_all` gives them."""
    return _read_each(run_files(folder, pattern))


def run_files(folder: Path, pattern: str = "*.json") -> list[Path]:
    """The files in `folder` that should be records of runs; those of studies lie deeper."""
    return sorted(filter(_should_be_a_run, folder.glob(pattern)))


def _should_be_a_run(path: Path) -> bool:
    return not path.name.startswith(".") and path.name not in ONCE


def _read_each(paths: Iterable[Path]) -> tuple[list[Record], list[str]]:
    records, problems = [], []
    for path in sorted(paths):
        try:
            records.append(read(path))
        except RecordError as error:
            problems.append(str(error))
    return sorted(
        records, key=lambda record: (record.raw.get("started_at") or "", record.path.name)
    ), problems


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
    lacking = missing_measurement(raw) if run["status"] == "ok" else None
    return f"says ok but lacks its measurements: {lacking}" if lacking else None


def missing_measurement(raw: dict[str, Any]) -> str | None:
    """The part that an ok record lacks, or holds in a form that nothing could be computed from; or None."""
    config, precision, steps = raw.get("config"), raw.get("precision"), raw.get("steps")
    ranks, epochs = raw.get("ranks"), raw.get("epochs")
    if not isinstance(steps, int) or steps < 1:
        return "steps"
    if not isinstance(config, dict):
        return "config"
    for key in ("epochs", "global_batch_size", "warmup_steps"):
        if not isinstance(config.get(key), int):
            return f"config.{key}"
    if not isinstance(precision, dict) or not isinstance(precision.get("compute"), str):
        return "precision.compute"
    if "scaler" not in precision:
        return "precision.scaler"
    for key in ("device", "backend"):
        if key not in raw:
            return key
    if not isinstance(epochs, list) or not epochs:
        return "epochs"
    for epoch in epochs:
        if not isinstance(epoch, dict) or not _is_number(epoch.get("test_accuracy")):
            return "epochs.test_accuracy"
    if not isinstance(ranks, list) or len(ranks) != raw.get("world_size"):
        return "ranks"
    for part in ranks:
        if not isinstance(part, dict) or "rank" not in part:
            return "ranks.rank"
        times, losses = part.get("step_ms"), part.get("loss")
        if not _is_list(times, steps) or not all(_is_number(value) and value > 0 for value in times):
            return "ranks.step_ms"
        if not _is_list(losses, steps) or not all(value is None or _is_number(value) for value in losses):
            return "ranks.loss"
        for key in ("peak_allocated_bytes", "peak_reserved_bytes", "peak_rss_bytes"):
            if part.get(key) is not None and not _is_number(part[key]):
                return f"ranks.{key}"
    return None


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
