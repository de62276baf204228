"""Carries out the plan: starts each run, judges it, and stores its record as soon as it ends."""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Any

from bench import launch, parity, provenance, records
from bench.files import replace_text
from bench.flags import config_argv, stored_config
from bench.judge import Verdict, judge, last_words
from bench.plan import REFERENCE, Job, launcher_of
from bench.processes import Outcome, Run, Stop
from bench.progress import Reporter
from bench.records import Record
from bench.registry import VARIANTS_DIR, find

TAIL_LINES = 20


@dataclass
class Attempt:
    """One run of a job, ended: all that its record is made of."""

    job: Job
    name: str
    command: list[str]
    omp_num_threads: str
    launched_at: str
    load_average: list[float] | None
    commit: str | None = None
    dirty: bool | None = None
    code: str | None = None
    raw: dict[str, Any] | None = None
    outcome: Outcome | None = None
    log: str = ""
    load_average_after: list[float] | None = None
    begun: bool = False
    """whether the reporter knows of it"""
    error: str | None = None
    """what kept the harness itself from carrying it out"""


@dataclass
class Runner:
    """One command that trains: its records all carry the same `command_id`.

    `study`: what the runs belong to and are told apart by, None for `bench run`; the runs of a study are not
    held against `single`. `alone`: see Record. `unstored`: by their file's name, the records that could
    not be put where they belong, and where they are instead; None for one that is lost.
    """

    cfg: Any
    environment: dict[str, Any]
    folder: Path
    stop: Stop
    run_timeout_s: float
    reporter: Reporter
    repeats: int = 1
    alone: bool | None = True
    study: dict[str, Any] | None = None
    unstored: dict[str, str | None] = field(default_factory=dict)
    command_id: str = field(default_factory=lambda: secrets.token_hex(8))
    _version: str | None = field(default_factory=provenance.version)
    _yardsticks: dict[tuple[str, int], Record | None] = field(default_factory=dict)

    def run_all(self, jobs: Sequence[Job]) -> list[Record]:
        """The records of the jobs begun, in order. A stop ends the one that runs, and begins no other."""
        done = []
        for number, job in enumerate(jobs):
            if self.study is None and job.variant.name != REFERENCE:
                self._yardstick(REFERENCE)
            if self.stop:
                break
            done.append(self._run(job, f"{number + 1}/{len(jobs)}"))
        return done

    def _yardstick(self, name: str, world_size: int = 1) -> Record | None:
        """A run to compare with: of `single`, of its twin, or of `ddp` on as many ranks.

        It is one of this command, an earlier one, or a new one. None when it failed, and it is not tried
        again: it would fail before each variant.
        """
        key = (name, world_size)
        if key not in self._yardsticks and not self.stop:
            self._yardsticks[key] = self._earlier(name, world_size)
            if self._yardsticks[key] is None:
                self.reporter.note(f"no run of {name} with these flags yet: it is run now, to compare with")
                variant = find(name)
                job = Job(variant, world_size, launcher_of(variant, None, named=False), order=-1)
                record = self._run(job, "to compare with")
                self._yardsticks[key] = record if parity.is_reference(record, name) else None
        return self._yardsticks.get(key)

    def _earlier(self, name: str, world_size: int) -> Record | None:
        try:
            earlier, _ = records.read_in(self.folder, f"{name}-*.json")
            code = provenance.code_digest(self.cfg.model)
            config = stored_config(self.cfg)
            return parity.find_reference(earlier, self.environment, config, code, name, world_size)
        except Exception as error:  # an old record that is odd in a way we did not think of
            self.reporter.warn(f"the earlier runs of {name} could not be used: {_in_a_line(error)}")
            return None

    def _run(self, job: Job, position: str) -> Record:
        """Run one job to its end and store its record."""
        attempt = self._attempt(job, position)
        name, key = job.variant.name, (job.variant.name, job.world_size)
        # Stored before it is compared with anything: whatever goes wrong there, the run is safe.
        record = self._store(Record(self.folder / f"{attempt.name}.json", self._raw(attempt)))
        if self.study is None and name in parity.YARDSTICKS and key not in self._yardsticks:
            usable = parity.is_reference(record, name)
            self._yardsticks[key] = record if usable else self._earlier(*key)
        self.reporter.end(record)  # first: comparing may start runs of its own, with progress of their own
        if self.study is None and name != REFERENCE and record.ok:
            record = self._compare(record)
        return record

    def _compare(self, record: Record) -> Record:
        """The record with its parity, stored again; a comparison that breaks is told in the row's reason."""
        twin = record if record.variant == parity.TWIN else None  # within its own measure by definition
        local = None
        try:
            for _ in parity.YARDSTICKS:  # each verdict may ask for one more run to compare with
                found = parity.parity(record.raw, self._yardstick(REFERENCE), twin, local)
                record.run["parity"] = found
                if (wanted := parity.needs(found)) is None:
                    break
                if wanted == parity.TWIN:
                    twin = self._yardstick(parity.TWIN)
                else:
                    local = self._yardstick(wanted, record.raw["world_size"])
        except Exception as error:
            record.run["parity"] = None
            problem = f"its parity could not be judged: {_in_a_line(error)}"
            record.run["reason"] = "; ".join(filter(None, [record.run["reason"], problem]))
        return self._store(record)

    def _attempt(self, job: Job, position: str) -> Attempt:
        """Run the job's processes to their end; none is left afterwards. What breaks is kept as its error."""
        now = datetime.now(timezone.utc)
        attempt = Attempt(
            job=job,
            name=f"{job.variant.name}-{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}",
            command=launch.command(job, config_argv(self._outputs(job))),
            omp_num_threads=str(launch.threads_of(job, self.environment["usable_cores"])),
            launched_at=now.isoformat(timespec="seconds"),
            load_average=provenance.load_average(),
        )
        nowhere = Path(os.devnull)
        try:
            # Files may have changed since the last run: in a long command, somebody edits them.
            attempt.commit, attempt.dirty = provenance.commit()
            attempt.code = provenance.code_digest(self._cfg(job).model)
            with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
                self._carry_out(attempt, position, Path(scratch))
        except (OSError, RuntimeError) as error:
            if not attempt.begun:
                self.reporter.begin(job, position, shown_command(attempt.command), nowhere, nowhere)
            attempt.error = _in_a_line(error)
        attempt.load_average_after = provenance.load_average()
        return attempt

    def _carry_out(self, attempt: Attempt, position: str, scratch: Path) -> None:
        """Start the processes and wait for their end. The live log, full of names, lies in `scratch`."""
        job, cores = attempt.job, self.environment["usable_cores"]
        raw, progress, log = scratch / "record.json", scratch / "progress", scratch / f"{attempt.name}.log"
        command = launch.command(job, config_argv(replace(self._outputs(job), record=str(raw))))
        environment = launch.child_environment(os.environ, job, cores, progress)
        log.touch()
        attempt.begun = True
        self.reporter.begin(job, position, shown_command(command), progress, log)
        run = Run(command, environment, run_id=attempt.name, log=log)
        attempt.outcome = run.wait(self.run_timeout_s, self.stop, self.reporter.tick)
        self.reporter.log_ends()
        attempt.raw = _read_raw(raw)
        attempt.log = provenance.scrub(log.read_text(encoding="utf-8", errors="replace"))
        with contextlib.suppress(OSError):  # a full disk: the record, with its last lines, matters more
            replace_text(self.folder / "logs" / log.name, attempt.log)

    def _cfg(self, job: Job) -> Any:
        return job.cfg or self.cfg

    def _outputs(self, job: Job) -> Any:
        """The configuration with output folders of the job's own: else it would resume another job's run."""
        cfg = self._cfg(job)
        if job.order < 0:
            return replace(cfg, checkpoint_dir=None, tensorboard=None)
        own = job.variant.name if self.repeats == 1 else f"{job.variant.name}-{job.repeat}"
        given = ((name, getattr(cfg, name)) for name in ("checkpoint_dir", "tensorboard"))
        return replace(cfg, **{name: os.path.join(folder, own) for name, folder in given if folder})

    def _verdict(self, attempt: Attempt) -> Verdict:
        if attempt.error:
            return Verdict("failed", f"the harness could not carry it out: {attempt.error}")
        if attempt.outcome.ended_by == "stop":
            return Verdict("interrupted", f"stopped by {self.stop.name}")
        if attempt.outcome.ended_by == "timeout":
            return Verdict("timeout", f"was still running after {self.run_timeout_s:g} s (--run-timeout)")
        cores = self.environment["usable_cores"]
        asked = stored_config(self._cfg(attempt.job))
        return judge(attempt.raw, attempt.outcome, attempt.job, asked, cores, attempt.log)

    def _raw(self, attempt: Attempt) -> dict[str, Any]:
        """What the variant recorded, or as much as is known without it, with the harness's own part."""
        job, verdict, outcome = attempt.job, self._verdict(attempt), attempt.outcome
        unknown = {"environment": self.environment, "started_at": attempt.launched_at}
        raw = attempt.raw if attempt.raw and attempt.raw.get("schema") == records.SCHEMA else unknown
        return {
            **raw,
            "schema": records.SCHEMA,
            "variant": job.variant.name,
            "config": stored_config(self._cfg(job)),
            "run": {
                "status": verdict.status,
                "reason": verdict.reason,
                "command_id": self.command_id,
                "asked_world_size": job.world_size,
                "launcher": job.launcher,
                "repeat": job.repeat,
                "order": job.order,
                "launched_at": attempt.launched_at,
                "wall_s": round(outcome.wall_s, 3) if outcome else 0.0,
                "exit_code": outcome.exit_code if outcome else None,
                "argv": shown_command(attempt.command),
                "omp_num_threads": attempt.omp_num_threads,
                "load_average": attempt.load_average,
                "load_average_after": attempt.load_average_after,
                "alone": self.alone,
                "commit": attempt.commit,
                "dirty": attempt.dirty,
                "code": attempt.code,
                "harness": self._version,
                "log": f"logs/{attempt.name}.log",
                "log_tail": last_words(attempt.log, TAIL_LINES) if verdict.status != "ok" else [],
                "parity": None,
                "study": self.study,
            },
        }

    def _store(self, record: Record) -> Record:
        """Write the record where it belongs, or where there is room: a run of an hour is not thrown away."""
        try:
            records.write(record)
            return record
        except OSError as error:
            if record.path.name in self.unstored:  # we have said so, and what is kept lacks its parity alone
                return record
            rescued: Record | None = None
            with contextlib.suppress(OSError):  # gettempdir raises it too, when no folder can be written to
                elsewhere = Record(Path(tempfile.gettempdir(), record.path.name), record.raw)
                records.write(elsewhere)
                rescued = elsewhere
            self.unstored[record.path.name] = str(rescued.path) if rescued else None
            self.reporter.warn(
                f"the record could not be written to {record.path} ({error.strerror or error}): "
                + (f"kept in {rescued.path}" if rescued else "and lost")
            )
            return rescued or record


def _in_a_line(error: BaseException) -> str:
    """What went wrong, in one line without names of this machine."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return provenance.scrub(" ".join(f"{type(error).__name__} {text}".split()))


def shown_command(command: Sequence[str]) -> list[str]:
    """The command as a reader could type it: no path of this machine, and not where we had the record put."""
    shown = ["python", *command[1:]]
    if "--record" in shown:
        at = shown.index("--record")
        del shown[at : at + 2]
    return [
        f"variants/{Path(part).relative_to(VARIANTS_DIR).as_posix()}"
        if part.startswith(f"{VARIANTS_DIR}{os.sep}")
        else PurePath(part).name
        if PurePath(part).is_absolute()
        else part
        for part in shown
    ]


def _read_raw(path: Path) -> dict[str, Any] | None:
    """The record a variant left; None when there is none, or none that can be read."""
    try:
        raw = records.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) else None
