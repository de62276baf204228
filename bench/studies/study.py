"""Carries out a study: plans it for this machine, runs it, keeps its records together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import machine, records
from bench.commands.options import Settings
from bench.harness import SessionError, alone_in, default_timeout_s, prepare, say_surroundings
from bench.plan import Job, PlanError
from bench.processes import Stop
from bench.progress import Reporter
from bench.records import Record
from bench.registry import RegistryError
from bench.runner import Runner

KINDS = ("noise", "comm", "scale", "race")


@dataclass(frozen=True)
class Finished:
    """A study that was carried out, to its end or until it was stopped."""

    records: list[Record]
    environment: dict[str, Any]
    machine_folder: Path
    exit_code: int


def run_study(
    kind: str,
    about: dict[str, Any],
    cfg: Any,
    plan: Callable[[dict[str, Any]], Sequence[Job]],
    settings: Settings,
) -> Finished:
    """Run the jobs that `plan` makes of this machine's environment; their records go to MACHINE/`kind`/.

    `about`: plain values that the records carry under run["study"], beside their kind. Exit code as of
    `bench run`. Raises SessionError before anything was trained.
    """
    stop = Stop()
    stop.listen()
    reporter = Reporter(settings.quiet, settings.verbose)
    try:
        environment = machine.probe(stop)
        jobs = list(plan(environment))
    except (PlanError, RegistryError, machine.ProbeError) as error:
        if stop:
            raise SystemExit(stop.exit_code) from None
        raise SessionError(str(error)) from None
    say_surroundings(reporter, environment, max(job.world_size for job in jobs))
    machine_folder = Path(settings.results_dir) / machine.slug(environment)
    folder = machine_folder / kind
    prepare(folder, folder / "logs")
    with alone_in(machine_folder, reporter) as alone:
        runner = Runner(
            cfg=cfg,
            environment=environment,
            folder=folder,
            stop=stop,
            run_timeout_s=settings.run_timeout_s or max(default_timeout_s(job.cfg or cfg) for job in jobs),
            reporter=reporter,
            alone=alone,
            study={"kind": kind, **about},
        )
        done = runner.run_all(jobs)
    if stop:
        code = stop.exit_code
    else:
        code = 0 if not runner.unstored and all(record.status in ("ok", "skipped") for record in done) else 1
    return Finished(done, environment, machine_folder, code)


def read(machine_folder: Path, kind: str) -> tuple[list[Record], list[str]]:
    """The records of all studies of that kind on a machine by time, and a line for each file that is none."""
    folder = machine_folder / kind
    return records.read_in(folder) if folder.is_dir() else ([], [])


def latest(found: Sequence[Record]) -> list[Record]:
    """The records of the newest command among them that was not broken off; of the newest if all were."""
    commands: dict[str, list[Record]] = {}
    for record in found:
        commands.setdefault(record.run["command_id"], []).append(record)
    whole = [runs for runs in commands.values() if all(run.status != "interrupted" for run in runs)]
    return (whole or list(commands.values()) or [[]])[-1]
