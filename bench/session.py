"""One `bench run` from its flags to its table."""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import derive, machine, records
from bench.plan import Job, PlanError, check, plan, select
from bench.processes import Stop
from bench.progress import Reporter
from bench.records import Record
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
        environment = machine.probe(stop)
        jobs = _jobs(request, chosen, request.world_size or len(environment["gpus"]) or 2)
    except (PlanError, machine.ProbeError) as error:
        if stop:
            return stop.exit_code
        raise SessionError(str(error)) from None
    _say_surroundings(reporter, environment, max(job.world_size for job in jobs))
    folder = Path(request.results_dir) / machine.slug(environment)
    _prepare(folder, request.json_to)
    runner = Runner(
        cfg=request.cfg,
        environment=environment,
        folder=folder,
        stop=stop,
        run_timeout_s=request.run_timeout_s or default_timeout_s(request.cfg),
        reporter=reporter,
        repeats=request.repeats,
    )
    done = runner.run_all(jobs)
    rows = _rows([variant.name for variant, _ in chosen], done, stop)
    shown = _show(rows, request)
    if stop:
        return stop.exit_code
    return 0 if shown and all(row.status in _GOOD for row in rows) else 1


def _jobs(request: Request, chosen: Sequence[tuple[Any, bool]], world_size: int) -> list[Job]:
    check(chosen, request.cfg, world_size)
    return plan(chosen, world_size, request.launcher, request.repeats)


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
            raise SessionError(f"cannot write to {place}: {error.strerror}") from None
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
            Path(request.json_to).write_text(records.to_json(json_rows(rows)) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"the rows could not be written to {request.json_to}: {error.strerror}", file=sys.stderr)
            return False
    return True
