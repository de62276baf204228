"""Carries out a study: plans it for this machine, runs it, keeps its records together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import machine
from bench.commands.options import Settings
from bench.harness import SessionError, alone_in, default_timeout_s, prepare, say_surroundings
from bench.plan import Job, PlanError
from bench.processes import Stop
from bench.progress import Reporter
from bench.records import Record
from bench.registry import RegistryError
from bench.runner import Runner


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
