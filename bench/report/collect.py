"""What the report is made from: of each machine, the newest repeats of each variant, grouped by job.

Two runs are in one table only when they are the same job: on the same machine, with the same flags.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bench import derive, records
from bench.records import Record, RecordError
from bench.studies import stored

# They change how a run is watched, not what is trained or timed.
_NOT_THE_JOB = ("timeout",)
_STAND_IN_NORM = "AllReduceBatchNorm"  # variants/core/syncbn.py
_DIGITS = b"0123456789+-.eE, \n"
_LONG_ARRAY = 200


@dataclass(frozen=True)
class Entry:
    """A row of the report: one variant at one number of ranks, over its repeats."""

    label: str
    row: derive.Row

    @property
    def variant(self) -> str:
        return self.row.variant

    @property
    def ok(self) -> bool:
        return self.row.status == "ok"

    @cached_property
    def raws(self) -> list[dict[str, Any]]:
        """The raw records of the repeats that were ok."""
        return [record.raw for record in self.row.records if record.ok]

    @cached_property
    def rates(self) -> list[float]:
        """images/s of each repeat that was ok."""
        return [derive.images_per_s(raw) for raw in self.raws]

    @property
    def last(self) -> dict[str, Any]:
        """The newest raw record there is; of one that was ok if any was."""
        return self.raws[-1] if self.raws else self.row.records[-1].raw

    @property
    def pass_through(self) -> bool:
        """DataParallel that had nothing to split over: it ran as its parent does."""
        return self.last.get("wrapper") == "DataParallel" and self.last.get("replicas") == 1

    @property
    def emulated(self) -> str | None:
        """Why these numbers are those of a stand-in and not of the thing itself; None when they are."""
        apex = self.last.get("apex")
        if isinstance(apex, dict) and apex.get("name") == "stand-in":
            return f"a stand-in for apex ran: {apex.get('reason')}"
        if _STAND_IN_NORM in (self.last.get("batch_norms") or []):
            return "a batch norm of ours over an all-reduce ran, as nn.SyncBatchNorm has no CPU kernels"
        return None

    @property
    def unranked(self) -> str | None:
        """Why this row is no candidate for the fastest, though it has numbers; None when it is one."""
        if not self.ok:
            return self.failure
        if self.pass_through:
            return "a pass-through here: with nothing to split over it runs as single does"
        if self.emulated:
            return f"emulated here: {self.emulated}"
        precision = self.last["precision"]["compute"]
        if self.last["device"] == "cpu" and precision == "float16":
            return "float16 has no native kernels on CPUs"
        return None

    @property
    def failure(self) -> str | None:
        """What went wrong, such as "failed: out of memory"; None when all repeats were ok."""
        if self.ok:
            return None
        bad, total = len(self.row.records) - len(self.raws), len(self.row.records)
        some = f" ({bad} of {total} repeats)" if self.raws else ""
        return f"{self.row.status}{some}: {self.row.reason or 'no reason recorded'}"


@dataclass(frozen=True)
class Job:
    """One configuration on one machine, and all that ran it."""

    config: dict[str, Any]
    entries: list[Entry]

    @property
    def reference(self) -> Entry | None:
        """`single`, against which all others are held, when it ran to its end."""
        return next((entry for entry in self.entries if entry.variant == "single" and entry.raws), None)

    def without(self, variants: Collection[str]) -> "Job":
        """This job but for the rows of these variants."""
        return Job(self.config, [entry for entry in self.entries if entry.variant not in variants])

    @property
    def timed(self) -> list[Entry]:
        """The entries that have numbers."""
        return [entry for entry in self.entries if entry.raws]


@dataclass(frozen=True)
class Machine:
    """A folder below results/. `jobs` begins with the one the section is about.

    `studies`: by kind, all records of that kind of study by time, whole or not. `limits`: what `bench limits`
    wrote, None where it did not run.
    """

    folder: Path
    jobs: list[Job]
    studies: dict[str, list[Record]] = field(default_factory=dict)
    limits: dict[str, Any] | None = None

    @property
    def main(self) -> Job:
        return self.jobs[0]

    @property
    def environments(self) -> list[dict[str, Any]]:
        """Of every run that left one."""
        runs = [record.raw for job in self.jobs for entry in job.entries for record in entry.row.records]
        found = [raw.get("environment") for raw in runs]
        return [each for each in found if isinstance(each, dict) and isinstance(each.get("packages"), dict)]


@dataclass(frozen=True)
class _Header:
    """What decides whether a record is read in full."""

    path: Path
    started: str
    command: str
    interrupted: bool
    job: str
    key: tuple[str, int]
    made_by: str
    ran: bool


def machines(results_dir: Path, order: Iterable[str]) -> tuple[list[Machine], list[str]]:
    """All machines with records, and a line for each file that is none; rows in the `order` of variants."""
    problems = [f"{path.name}: lies in no machine's folder" for path in sorted(results_dir.glob("*.json"))]
    found = []
    for folder in sorted(path for path in results_dir.glob("[!.]*") if path.is_dir()):
        headers, bad = _headers(folder)
        jobs = _jobs(headers, list(order), bad)
        studies = {kind: _studied(folder, kind, bad) for kind in stored.KINDS}
        limits = _limits(folder, bad)
        problems += [f"{folder.name}: {line}" for line in bad]
        if jobs:
            found.append(Machine(folder, jobs, studies, limits))
    return found, problems


def _studied(folder: Path, kind: str, problems: list[str]) -> list[Record]:
    found, bad = stored.read(folder, kind)
    problems += [f"{kind}: {line}" for line in bad]
    return found


def _limits(folder: Path, problems: list[str]) -> dict[str, Any] | None:
    path = folder / "limits.json"
    if not path.exists():
        return None
    try:
        raw = records.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problems.append(f"{path.name}: not read: {str(error).splitlines()[0]}")
        return None
    if not isinstance(raw, dict):
        problems.append(f"{path.name}: holds no limits")
        return None
    return raw


def _headers(folder: Path) -> tuple[list[_Header], list[str]]:
    headers, problems = [], []
    for path in records.run_files(folder):
        try:
            headers.append(_header(path))
        except RecordError as error:
            problems.append(str(error))
    newest: dict[str, str] = defaultdict(str)
    for header in headers:  # a run that failed at once has no start of its own: it has its command's
        newest[header.command] = max(newest[header.command], header.started)
    return sorted(headers, key=lambda header: (newest[header.command], header.command)), problems


def _header(path: Path) -> _Header:
    """The header of one file. With thousands of records, reading every number of each would take minutes."""
    try:
        raw = json.loads(_without_arrays(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path.name}: not read: {str(error).splitlines()[0]}") from None
    if (
        not isinstance(raw, dict)
        or not isinstance(raw.get("run"), dict)
        or raw.get("schema") != records.SCHEMA
    ):
        records.read(path)  # raises with what is wrong
    run, config = raw["run"], raw.get("config")
    job = {key: value for key, value in (config or {}).items() if key not in _NOT_THE_JOB}
    return _Header(
        path=path,
        started=str(run.get("launched_at") or raw.get("started_at") or ""),
        command=str(run.get("command_id")),
        interrupted=run.get("status") == "interrupted",
        job=json.dumps(job, sort_keys=True),
        key=(str(raw.get("variant")), raw.get("world_size") or run.get("asked_world_size") or 1),
        made_by=_made_by(raw),
        ran="environment" in raw,
    )


def _made_by(raw: dict[str, Any]) -> str:
    """What decides whether two commands measured the same: code, commit, computer and packages.

    A run with changes that no commit holds is alike to none but those of its own command.
    """
    run, environment = raw["run"], raw.get("environment")
    changed = run.get("command_id") if run.get("dirty") else None
    return json.dumps([run.get("code"), run.get("commit"), changed, environment], sort_keys=True, default=str)


def _without_arrays(text: bytes) -> bytes:
    """JSON with its long arrays of numbers emptied. Anything else is left as it is, so it stays correct."""
    parts, at = [], 0
    while (start := text.find(b"[", at)) >= 0:
        end = text.find(b"]", start)
        long = end - start > _LONG_ARRAY and not text[start + 1 : end].translate(None, _DIGITS)
        parts.append(text[at : start + 1])
        at = end if long else start + 1
    return b"".join([*parts, text[at:]])


def _jobs(headers: list[_Header], order: list[str], problems: list[str]) -> list[Job]:
    """The jobs of a machine: first that with the most variants measured, the newest of equals."""
    groups: dict[str, dict[tuple[str, int], list[_Header]]] = defaultdict(lambda: defaultdict(list))
    for header in headers:
        groups[header.job][header.key].append(header)
    jobs = []
    for rows in groups.values():
        kept = {key: _newest(group, problems) for key, group in rows.items()}
        entries = _entries({key: group for key, group in kept.items() if group}, order)
        if entries:
            jobs.append(Job(entries[0].last.get("config") or {}, entries))
    return sorted(jobs, key=lambda job: (len(job.timed), _started(job)), reverse=True)


def _started(job: Job) -> str:
    return max(
        str(record.run.get("launched_at") or "") for entry in job.entries for record in entry.row.records
    )


def _newest(headers: list[_Header], problems: list[str]) -> list[Record]:
    """The records of one command: of those made like the newest, that with the most repeats.

    Of equals it is the newest. A command that was broken off counts only where there is no other. So a single
    run made later does not take the place of three repeats, unless code, commit or computer changed since.
    """
    commands: dict[str, list[_Header]] = {}
    for header in reversed(headers):
        commands.setdefault(header.command, []).append(header)
    broken_off = {header.command for header in headers if header.interrupted}
    whole = [command for command in commands if command not in broken_off] or list(commands)
    newest = _how_made(commands[whole[0]])

    def place(command: str) -> tuple[bool, bool, int]:
        alike = _how_made(commands[command]) == newest
        return command in broken_off, not alike, -len(commands[command]) if alike else 0

    for command in sorted(commands, key=place):  # stable: newest first
        read = (_read(header.path, problems) for header in headers if header.command == command)
        good = [record for record in read if record]
        # A run made only to compare others with (order -1) is no repeat where there are real ones.
        rounds = [record for record in good if (record.run.get("order") or 0) >= 0] or good
        if rounds:
            return sorted(rounds, key=lambda record: record.run.get("repeat") or 0)
    return []


def _how_made(headers: list[_Header]) -> set[str]:
    """Of the runs that tell their environment, if any does: one that failed at once leaves none."""
    return {each.made_by for each in headers if each.ran} or {each.made_by for each in headers}


def _read(path: Path, problems: list[str]) -> Record | None:
    """The record in full, or None and a line on what it lacks."""
    try:
        record = records.read(path)
        if record.ok:  # whatever the report will ask of it must be there
            derive.row([record])
            record.raw["environment"]["packages"]
    except RecordError as error:
        problems.append(str(error))
        return None
    except (LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        problems.append(f"{path.name}: says ok but its measurements are not usable ({error!r})")
        return None
    return record


def _entries(rows: dict[tuple[str, int], list[Record]], order: list[str]) -> list[Entry]:
    """One entry a row; the number of ranks is in its name where a variant ran with several."""
    sizes = Counter(variant for variant, _ in rows)

    def place(key: tuple[str, int]) -> tuple[int, str, int]:
        return (order.index(key[0]) if key[0] in order else len(order), *key)

    return [
        Entry(
            key[0] if sizes[key[0]] == 1 else f"{key[0]} ({key[1]} rank{'s' * (key[1] > 1)})",
            derive.row(rows[key]),
        )
        for key in sorted(rows, key=place)
    ]
