"""One `bench run` from its flags to its table."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import filelock

from bench import derive, machine, records
from bench.files import replace_text
from bench.plan import Job, PlanError, check, one_rank_notes, plan, select
from bench.processes import Stop
from bench.progress import Reporter
from bench.records import Record
from bench.registry import RegistryError
from bench.runner import Runner
from bench.table import json_rows, print_table

_NEEDED_BYTES = 20 * 2**20  # the record of an epoch takes about half a megabyte
_GOOD = {"ok", "skipped"}


class SessionError(Exception):
    """The command cannot be carried out. One line, for the user."""


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    names: Sequence[str]
    cfg: Any
    world_size: int | None
    launcher: str | None
    repeats: int
    results_dir: str
    json_to: str | None
    run_timeout_s: float | None
    quiet: bool
    verbose: bool


def run_session(request: Request) -> int:
    """Run all of it; the exit code. Raises SessionError before anything was trained."""
    stop = Stop()
    stop.listen()
    reporter = Reporter(request.quiet, request.verbose)
    try:
        chosen = select(request.names)
        # Twice: a mistake that shows already is told at once, and not after torch was imported.
        _jobs(request, chosen, request.world_size or 1)
        notes = one_rank_notes(chosen, request.world_size, request.launcher)
        environment = machine.probe(stop)
        world_size, why = default_world_size(request, len(environment["gpus"]))
        jobs = _jobs(request, chosen, world_size)
    except (PlanError, RegistryError, machine.ProbeError) as error:
        if stop:
            return stop.exit_code
        raise SessionError(str(error)) from None
    for note in [*notes, *why]:
        reporter.note(note)
    _say_surroundings(reporter, environment, max(job.world_size for job in jobs))
    folder = Path(request.results_dir) / machine.slug(environment)
    _prepare(folder, request.json_to)
    with _alone(folder, reporter) as alone:
        runner = Runner(
            cfg=request.cfg,
            environment=environment,
            folder=folder,
            stop=stop,
            run_timeout_s=request.run_timeout_s or default_timeout_s(request.cfg),
            reporter=reporter,
            repeats=request.repeats,
            alone=alone,
        )
        done = runner.run_all(jobs)
    rows = _rows([variant.name for variant, _ in chosen], done, stop)
    rows = [_without_lost(row, runner.unstored) for row in rows]
    shown = _show(rows, request)
    if stop:
        return stop.exit_code
    stored = shown and not runner.unstored
    return 0 if stored and all(row.status in _GOOD for row in rows) else 1


def _jobs(request: Request, chosen: Sequence[tuple[Any, bool]], world_size: int) -> list[Job]:
    check(chosen, request.cfg, world_size)
    return plan(chosen, world_size, request.launcher, request.repeats)


def default_world_size(request: Request, gpus: int) -> tuple[int, list[str]]:
    """The ranks to run where the user gave no number, and a line on it where a reader expects another."""
    if request.world_size or not gpus:
        return request.world_size or 2, []
    batch = request.cfg.global_batch_size
    ranks = next(count for count in range(gpus, 0, -1) if batch % count == 0)
    if ranks == gpus:
        return gpus, []
    return ranks, [f"{ranks} of {gpus} GPUs are used: --global-batch-size {batch} does not divide by more"]


@contextlib.contextmanager
def _alone(folder: Path, reporter: Reporter) -> Iterator[bool | None]:
    """Whether no other `bench run` is at work on this machine; None where locks do not work."""
    lock = filelock.FileLock(folder / ".lock")
    alone: bool | None = True
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        alone = False
        reporter.note("another bench run is at work on this machine: times will vary")
    except (OSError, NotImplementedError):
        alone = None
    try:
        yield alone
    finally:
        lock.release()


def _without_lost(row: derive.Row, unstored: dict[str, str | None]) -> derive.Row:
    """The row, which names no record when that could not be stored anywhere."""
    name = PurePath(row.record).name if row.record else None
    lost = name in unstored and unstored[name] is None
    return replace(row, record=None) if lost else row


def default_timeout_s(cfg: Any) -> float:
    """Twenty images a second is slower than anything here but float16 on a CPU, which gets its time too."""
    images = cfg.epochs * (cfg.train_images or 60_000)
    return 300 + cfg.timeout + images / 20


def _say_surroundings(reporter: Reporter, environment: dict[str, Any], ranks: int) -> None:
    """What will make the numbers other than a reader expects."""
    if "OMP_NUM_THREADS" in os.environ:
        reporter.note("OMP_NUM_THREADS is set but not used: all rows share the cores by one rule")
    load, cores = (os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0), environment["usable_cores"]
    if load > cores / 2:
        reporter.note(
            f"other programs keep this machine busy (load {load:.1f} on {cores} cores): times will vary"
        )
    if ranks > cores and not environment["gpus"]:
        reporter.note(f"{ranks} ranks share {cores} cores: this shows that it works, not how fast it is")


def _prepare(folder: Path, json_to: str | None) -> None:
    """Find out before hours of training whether there is a place for their results."""
    if json_to not in (None, "-") and Path(json_to).is_dir():
        raise SessionError(f"--json: {json_to} is a folder")
    for place in (
        folder,
        folder / "logs",
        *([Path(json_to).absolute().parent] if json_to not in (None, "-") else []),
    ):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=place, prefix=".writable-"):
                pass
            free = shutil.disk_usage(place).free
        except OSError as error:
            raise SessionError(f"cannot write to {place}: {error.strerror or error}") from None
        if free < _NEEDED_BYTES:
            raise SessionError(
                f"cannot write to {place}: {free // 2**20} MB are free, {_NEEDED_BYTES // 2**20} needed"
            )


def _rows(names: Sequence[str], done: Sequence[Record], stop: Stop) -> list[derive.Row]:
    """One row for each variant asked for, in the order asked."""
    rows = []
    for name in names:
        own = [record for record in done if record.variant == name]
        if own:
            rows.append(derive.row(own))
        else:
            rows.append(derive.Row(name, "interrupted", f"not started: stopped by {stop.name}"))
    return rows


def _show(rows: Sequence[derive.Row], request: Request) -> bool:
    """Put out the rows; whether they all got where they were to go."""
    if request.json_to == "-":
        print(records.to_json(json_rows(rows)), flush=True)
        print_table(rows, sys.stderr)
        return True
    print_table(rows, sys.stdout)
    if request.json_to:
        try:
            replace_text(Path(request.json_to), records.to_json(json_rows(rows)) + "\n")
        except OSError as error:
            print(
                f"the rows could not be written to {request.json_to}: {error.strerror or error}",
                file=sys.stderr,
            )
            return False
    return True
