"""One `bench run` from its flags to its table."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from bench import derive, machine, records
from bench.commands.options import Settings
from bench.files import replace_text
from bench.harness import SessionError, alone_in, default_timeout_s, prepare, say_surroundings
from bench.plan import Job, PlanError, check, one_rank_notes, plan, select
from bench.processes import Stop
from bench.progress import Reporter
from bench.records import Record
from bench.registry import RegistryError
from bench.runner import Runner
from bench.table import json_rows, print_table

_GOOD = {"ok", "skipped"}


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    names: Sequence[str]
    cfg: Any
    world_size: int | None
    launcher: str | None
    repeats: int
    json_to: str | None
    settings: Settings


def run_session(request: Request) -> int:
    """Run all of it; the exit code. Raises SessionError before anything was trained."""
    stop = Stop()
    stop.listen()
    reporter = Reporter(request.settings.quiet, request.settings.verbose)
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
    say_surroundings(reporter, environment, max(job.world_size for job in jobs))
    folder = Path(request.settings.results_dir) / machine.slug(environment)
    prepare(folder, folder / "logs", *json_places(request.json_to))
    with alone_in(folder, reporter) as alone:
        runner = Runner(
            cfg=request.cfg,
            environment=environment,
            folder=folder,
            stop=stop,
            run_timeout_s=request.settings.run_timeout_s or default_timeout_s(request.cfg),
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


def json_places(json_to: str | None) -> list[Path]:
    """The folder that --json writes to, if it is to write to one; raises SessionError when it cannot."""
    if json_to in (None, "-"):
        return []
    if Path(json_to).is_dir():
        raise SessionError(f"--json: {json_to} is a folder")
    return [Path(json_to).absolute().parent]


def _without_lost(row: derive.Row, unstored: dict[str, str | None]) -> derive.Row:
    """The row, which names no record when that could not be stored anywhere."""
    name = PurePath(row.record).name if row.record else None
    lost = name in unstored and unstored[name] is None
    return replace(row, record=None) if lost else row


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
