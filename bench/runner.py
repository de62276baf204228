"""Carries out the plan: starts each run, judges it, and stores its record as soon as it ends."""

import json
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Any

from bench import launch, parity, provenance, records
from bench.flags import config_argv, training_config
from bench.judge import Verdict, judge, last_words
from bench.plan import REFERENCE, Job
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
    raw: dict[str, Any] | None = None
    outcome: Outcome | None = None
    log: str = ""


@dataclass
class Runner:
    """One `bench run`: its records all carry the same `command_id`."""

    cfg: Any
    environment: dict[str, Any]
    folder: Path
    stop: Stop
    run_timeout_s: float
    reporter: Reporter
    repeats: int = 1
    command_id: str = field(default_factory=lambda: secrets.token_hex(8))
    _yardsticks: dict[str, Record | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._commit, self._dirty = provenance.commit()
        self._code = provenance.code_digest()
        self._version = provenance.version()

    def run_all(self, jobs: Sequence[Job]) -> list[Record]:
        """The records of the jobs begun, in order. A stop ends the one that runs, and begins no other."""
        done = []
        for number, job in enumerate(jobs):
            if job.variant.name != REFERENCE:
                self._yardstick(REFERENCE)
            if self.stop:
                break
            done.append(self._run(job, f"{number + 1}/{len(jobs)}"))
        return done

    def _yardstick(self, name: str) -> Record | None:
        """A run of `single`, or of its twin, to compare with: of this command, an earlier one, or a new one.

        None when it failed, and it is not tried again: it would fail before each variant.
        """
        if name not in self._yardsticks and not self.stop:
            self._yardsticks[name] = self._earlier(name)
            if self._yardsticks[name] is None:
                self.reporter.note(f"no run of {name} with these flags yet: it is run now, to compare with")
                record = self._run(Job(find(name), 1, "none", order=-1), "to compare with")
                self._yardsticks[name] = record if parity.is_reference(record, name) else None
        return self._yardsticks.get(name)

    def _earlier(self, name: str) -> Record | None:
        earlier, _ = records.read_all(self.folder, f"{name}-*.json")
        return parity.find_reference(earlier, self.environment, stored_config(self.cfg), self._code, name)

    def _run(self, job: Job, position: str) -> Record:
        """Run one job to its end and store its record."""
        attempt = self._attempt(job, position)
        name = job.variant.name
        record = Record(self.folder / f"{attempt.name}.json", self._raw(attempt))
        if name in (REFERENCE, parity.TWIN) and name not in self._yardsticks:
            self._yardsticks[name] = record if parity.is_reference(record, name) else self._earlier(name)
        if name != REFERENCE and record.ok:
            own_twin = record if name == parity.TWIN else None  # within its own measure by definition
            record.run["parity"] = parity.parity(record.raw, self._yardstick(REFERENCE), own_twin)
        record = self._store(record)
        self.reporter.end(record)
        if parity.needs_twin(record.run["parity"]):
            # The record is safe by now: the twin may take as long as the run itself.
            twin = self._yardstick(parity.TWIN)
            record.run["parity"] = parity.parity(record.raw, self._yardstick(REFERENCE), twin)
            record = self._store(record)
        return record

    def _attempt(self, job: Job, position: str) -> Attempt:
        """Start the job's processes and wait for their end; none is left afterwards."""
        now = datetime.now(timezone.utc)
        name = f"{job.variant.name}-{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        log = self.folder / "logs" / f"{name}.log"
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
            raw, progress = Path(scratch, "record.json"), Path(scratch, "progress")
            command = launch.command(job, config_argv(replace(self._outputs(job), record=str(raw))))
            environment = launch.child_environment(
                os.environ, job, self.environment["usable_cores"], progress
            )
            attempt = Attempt(
                job=job,
                name=name,
                command=command,
                omp_num_threads=environment["OMP_NUM_THREADS"],
                launched_at=now.isoformat(timespec="seconds"),
                load_average=provenance.load_average(),
            )
            self.reporter.begin(job, position, shown_command(command), progress, log)
            run = Run(command, environment, run_id=name, log=log)
            attempt.outcome = run.wait(self.run_timeout_s, self.stop, self.reporter.tick)
            attempt.raw = _read_raw(raw)
        attempt.log = _settle_log(log)
        return attempt

    def _outputs(self, job: Job) -> Any:
        """The configuration with output folders of the job's own: else it would resume another job's run."""
        if job.order < 0:
            return replace(self.cfg, checkpoint_dir=None, tensorboard=None)
        own = job.variant.name if self.repeats == 1 else f"{job.variant.name}-{job.repeat}"
        given = ((name, getattr(self.cfg, name)) for name in ("checkpoint_dir", "tensorboard"))
        return replace(self.cfg, **{name: os.path.join(folder, own) for name, folder in given if folder})

    def _verdict(self, attempt: Attempt) -> Verdict:
        if attempt.outcome.ended_by == "stop":
            return Verdict("interrupted", f"stopped by {self.stop.name}")
        if attempt.outcome.ended_by == "timeout":
            return Verdict("timeout", f"was still running after {self.run_timeout_s:g} s (--run-timeout)")
        cores = self.environment["usable_cores"]
        return judge(attempt.raw, attempt.outcome, attempt.job, cores, attempt.log)

    def _raw(self, attempt: Attempt) -> dict[str, Any]:
        """What the variant recorded, or as much as is known without it, with the harness's own part."""
        job, verdict = attempt.job, self._verdict(attempt)
        unknown = {"environment": self.environment, "started_at": attempt.launched_at}
        raw = attempt.raw if attempt.raw and attempt.raw.get("schema") == records.SCHEMA else unknown
        return {
            **raw,
            "schema": records.SCHEMA,
            "variant": job.variant.name,
            "config": stored_config(self.cfg),
            "run": {
                "status": verdict.status,
                "reason": verdict.reason,
                "command_id": self.command_id,
                "asked_world_size": job.world_size,
                "launcher": job.launcher,
                "repeat": job.repeat,
                "order": job.order,
                "launched_at": attempt.launched_at,
                "wall_s": round(attempt.outcome.wall_s, 3),
                "exit_code": attempt.outcome.exit_code,
                "argv": shown_command(attempt.command),
                "omp_num_threads": attempt.omp_num_threads,
                "load_average": attempt.load_average,
                "commit": self._commit,
                "dirty": self._dirty,
                "code": self._code,
                "harness": self._version,
                "log": f"logs/{attempt.name}.log",
                "log_tail": last_words(attempt.log, TAIL_LINES) if verdict.status != "ok" else [],
                "parity": None,
            },
        }

    def _store(self, record: Record) -> Record:
        """Write the record where it belongs, or where there is room: a run of an hour is not thrown away."""
        try:
            records.write(record)
            return record
        except OSError as error:
            rescued = Record(Path(tempfile.gettempdir(), record.path.name), record.raw)
            where = f"kept in {rescued.path}"
            try:
                records.write(rescued)
            except OSError:
                where = "and lost"
            self.reporter.note(
                f"the record could not be written to {record.path} ({error.strerror}): {where}"
            )
            return rescued


def stored_config(cfg: Any) -> dict[str, Any]:
    """`cfg` as records hold it: what was trained, and no absolute path."""
    stored = training_config(cfg)
    if stored["data_dir"] and PurePath(stored["data_dir"]).is_absolute():
        stored["data_dir"] = PurePath(stored["data_dir"]).name
    return stored


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
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) else None


def _settle_log(path: Path) -> str:
    """What the run printed, without names of this machine; the file is left like that too."""
    text = provenance.scrub(path.read_text(encoding="utf-8", errors="replace"))
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:  # a full disk: better no log than one with names in it
        path.unlink(missing_ok=True)
        temporary.unlink(missing_ok=True)
    return text
