"""Whether a run may be believed: what really ran, held against what was asked.

A clean exit code proves nothing: a launcher may start one process where two were asked for, autocast may be
off, ranks may have drifted apart. So a row is ok only when the record of every rank says so.
"""

import os
import re
import signal
import socket
from dataclasses import dataclass
from typing import Any

from bench.flags import TRAINING_SET, stored
from bench.launch import threads_of
from bench.plan import Job
from bench.processes import Outcome
from bench.records import SCHEMA, missing_measurement

TEST_SET = 10_000
UNAVAILABLE = 69  # variants/core/config.py: this technique cannot run on this machine
_SIXTEEN_BITS = ("bfloat16", "float16")


@dataclass(frozen=True)
class Verdict:
    """`status` is one of records.STATUSES; `reason` is one line, or None for a plain ok."""

    status: str
    reason: str | None = None


def judge(
    raw: dict[str, Any] | None,
    outcome: Outcome,
    job: Job,
    config: dict[str, Any],
    usable_cores: int,
    log: str,
) -> Verdict:
    """The verdict on a run that ended by itself.

    `raw`: what it recorded; `config`: what it was to train (see bench.flags.stored_config); `log`: what its
    ranks printed.
    """
    if outcome.exit_code != 0:
        unavailable = re.search(r"^\S+: unavailable: (.+)$", log, re.MULTILINE)
        if unavailable and _first_to_fail(outcome.exit_code, log)[1] == UNAVAILABLE:
            return Verdict("skipped", unavailable.group(1))
        return Verdict("failed", cause_of_death(outcome.exit_code, log))
    try:
        return _judge_record(raw, job, config, usable_cores)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        # A script of the user's may write a record by other means than StepLog.
        return Verdict("failed", f"its record cannot be read: {type(error).__name__} {error}")


def _judge_record(raw: dict[str, Any] | None, job: Job, config: dict[str, Any], usable_cores: int) -> Verdict:
    problem = _missing(raw, job) or _mismatch(raw, job, config, usable_cores)
    if problem:
        return Verdict("failed", problem)
    diverged = _first_bad_step(raw)
    if diverged:
        return Verdict("diverged", f"the loss is not finite from step {diverged} of {raw['steps']} on")
    return Verdict("ok", "; ".join(_remarks(raw)) or None)


def _missing(raw: dict[str, Any] | None, job: Job) -> str | None:
    """What the record lacks to be one of this run, or None."""
    if raw is None:
        return "it ended without an error but left no record: is log.epoch(...) called on every rank?"
    if raw.get("schema") != SCHEMA:
        return f"its record has schema {raw.get('schema')!r}, this version reads {SCHEMA}"
    if raw["world_size"] != job.world_size:
        return f"asked for {_ranks(job.world_size)}, {raw['world_size']} trained together"
    ranks = [part["rank"] for part in raw["ranks"]]
    if ranks != list(range(job.world_size)):
        return f"asked for ranks 0 to {job.world_size - 1}, the record has {ranks}"
    if raw["steps"] == 0:
        return "it made no training step"
    for part in raw["ranks"]:
        counts = {len(part["step_ms"]), len(part["loss"])}
        if counts != {raw["steps"]}:
            return f"rank {part['rank']} left {min(counts)} steps of {raw['steps']}"
    if raw["precision"]["compute"] is None:
        return "the loss handed to log.step has no graph: what it was computed in cannot be seen"
    lacking = missing_measurement(raw)
    return f"its record lacks {lacking}" if lacking else None


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"


def _mismatch(raw: dict[str, Any], job: Job, config: dict[str, Any], usable_cores: int) -> str | None:
    """Where what ran is not what was asked for, or None."""
    return (
        _config_mismatch(raw, config)
        or _work_mismatch(raw, config, job)
        or _precision_mismatch(raw)
        or _thread_mismatch(raw, job, usable_cores)
        or _weights_mismatch(raw)
    )


def _config_mismatch(raw: dict[str, Any], config: dict[str, Any]) -> str | None:
    """The first flag that the variant did not train by: a script may build a Config of its own."""
    trained = stored(raw["config"])
    for name, asked in config.items():
        if name not in trained:
            return f"its record does not say which {name} it trained with"
        if trained[name] != asked:
            return f"asked for {name} {asked}, trained with {trained[name]}"
    return None


def _work_mismatch(raw: dict[str, Any], config: dict[str, Any], job: Job) -> str | None:
    """Whether it left out images, or epochs. A run that was resumed has made the rest of its epochs alone."""
    epochs, steps = len(raw["epochs"]), raw["steps"]
    if epochs > config["epochs"]:
        return f"asked for epochs {config['epochs']}, it trained {epochs}"
    images = config["train_images"] or TRAINING_SET
    # DistributedSampler gives each rank the same number of images, some twice, when they do not divide.
    padded = images + -images % job.world_size
    allowed = {epochs * (count // config["global_batch_size"]) for count in (images, padded)}
    if steps not in allowed:
        return f"it made {steps} steps, {_epochs(epochs)} of {images} images have {min(allowed)}"
    for epoch in raw["epochs"]:
        tested = epoch.get("test_images")
        if tested is not None and tested != TEST_SET:
            return f"it tested on {tested} images, its test_images are to be {TEST_SET}"
    return None


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' * (count > 1)}"


def _precision_mismatch(raw: dict[str, Any]) -> str | None:
    asked, computed = raw["precision"]["asked"], raw["precision"]["compute"]
    wrong = computed != asked and (asked in _SIXTEEN_BITS or asked == "float64")
    return f"asked for {asked}, computed in {computed}" if wrong else None


def _thread_mismatch(raw: dict[str, Any], job: Job, usable_cores: int) -> str | None:
    threads = [part["threads"] for part in raw["ranks"]]
    if len(set(threads)) > 1:
        return f"its ranks ran with different numbers of threads: {threads}"
    if _on_gpu(raw):  # there the host's threads take no part in the training
        return None
    allowed = threads_of(job, usable_cores)
    if threads[0] != allowed:
        return f"each rank ran {threads[0]} threads, all rows are to run {allowed}"
    return None


def _weights_mismatch(raw: dict[str, Any]) -> str | None:
    """Every method ends an epoch with one model: also those that shard it, or let it drift in between."""
    digests = [part["weights_sha256"] for part in raw["ranks"]]
    if len(set(digests)) == 1:
        return None
    others = [str(part["rank"]) for part in raw["ranks"] if part["weights_sha256"] != digests[0]]
    return f"the weights drifted apart: rank{'s' * (len(others) > 1)} {', '.join(others)} differ from rank 0"


def _on_gpu(raw: dict[str, Any]) -> bool:
    return raw["ranks"][0]["device"].startswith("cuda")


def _first_bad_step(raw: dict[str, Any]) -> int | None:
    """The first step, from 1, at which some rank's loss was NaN or infinite (null in the record)."""
    bad = [part["loss"].index(None) + 1 for part in raw["ranks"] if None in part["loss"]]
    return min(bad) if bad else None


def _remarks(raw: dict[str, Any]) -> list[str]:
    """What a reader of the row must know, though nothing is wrong with it."""
    remarks = []
    if raw["wrapper"] == "DataParallel" and raw["replicas"] == 1:
        remarks.append("pass-through: nn.DataParallel ran 1 replica")
    if raw.get("apex"):
        stand_in = raw["apex"]["name"] == "stand-in"
        emulated = f"emulated: stand-in for apex: {raw['apex']['reason']}"
        remarks.append(emulated if stand_in else raw["apex"]["name"])
    if "AllReduceBatchNorm" in (raw.get("batch_norms") or []):
        remarks.append(
            "emulated: a batch norm of ours over an all-reduce, as nn.SyncBatchNorm has no CPU kernels"
        )
    if raw["world_size"] > 1 and raw["ranks"][0]["weights_sha256"] is None:
        remarks.append("the weights of its ranks were not compared: its StepLog was given no Checkpoint")
    devices = {(part["host"], part["device"]) for part in raw["ranks"]}
    on_gpu = _on_gpu(raw)
    if on_gpu and len(devices) < raw["world_size"]:
        gpus = f"{len(devices)} GPU{'s' * (len(devices) > 1)}"
        remarks.append(f"{raw['world_size']} ranks share {gpus}, over {raw['backend']}")
    if not on_gpu and raw["precision"]["compute"] == "float16":
        remarks.append("float16 on a CPU runs without native kernels: not to be ranked")
    return remarks


def last_words(log: str, lines: int) -> list[str]:
    """The end of what the ranks printed, without what torchrun has to say about it after that."""
    told_by_ranks = re.split(
        r"^.*torch/distributed/elastic/multiprocessing/api\.py", log, flags=re.MULTILINE
    )[0]
    return (told_by_ranks.strip() or log.strip()).splitlines()[-lines:]


def cause_of_death(exit_code: int, log: str) -> str:
    """Who failed and of what, in one line, from a launcher's exit code and the ranks' output."""
    interface = _wrong_interface(log)
    if interface:
        return interface
    told = re.findall(r"^\S+: error: (.+)$", log, re.MULTILINE)
    rank, code = _first_to_fail(exit_code, log)
    if told and code in (1, 2):
        return told[-1]
    who = "the process" if rank is None else f"rank {rank}"
    if code < 0:
        return f"{who} was killed by {_signal_name(-code)}"
    exception = _exception_of(rank, log)
    return f"{who}: {exception}" if exception else f"{who} ended with exit code {code}"


def _wrong_interface(log: str) -> str | None:
    """gloo names the interface it cannot find, but not those there are."""
    names = os.environ.get("GLOO_SOCKET_IFNAME", "")
    there = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    missing = [name for name in names.split(",") if name and name not in there and name in log]
    if not missing:
        return None
    return (
        f"GLOO_SOCKET_IFNAME: there is no network interface {missing[0]} here; there are {', '.join(there)}"
    )


def _first_to_fail(exit_code: int, log: str) -> tuple[int | None, int]:
    """(rank or None, its exit code, negative for a signal), as the launcher tells it."""
    # torchrun's summary names every failed rank; those it ended itself, by SIGTERM, are no cause.
    failures = re.findall(r"^ +rank +: (\d+) .*\n +exitcode +: (-?\d+)", log, re.MULTILINE)
    failures = [(int(rank), int(code)) for rank, code in failures if int(code) != -signal.SIGTERM]
    killed = [failure for failure in failures if failure[1] < 0]
    if killed:
        return killed[0]
    if failures:
        return failures[-1]  # the root cause comes last
    # torch.multiprocessing.spawn tells it in the text of its exception.
    spawned = re.search(r"process (\d+) terminated with (?:signal (\w+)|exit code (\d+))", log, re.IGNORECASE)
    if spawned:
        rank, name, code = spawned.groups()
        number = getattr(signal, name, None) if name else None
        return int(rank), -number if number else int(code or 1)
    raised = re.search(r"-- Process (\d+) terminated with the following error", log)
    return (int(raised.group(1)) if raised else None), exit_code


def _exception_of(rank: int | None, log: str) -> str | None:
    """The last line of the traceback of that rank, or of the last traceback there is."""
    line = r"((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning)\b(?:: .*)?)$"
    if rank is not None:
        own = re.findall(rf"^\[rank{rank}\]: {line}", log, re.MULTILINE)
        if own:
            return own[-1].strip()
    found = re.findall(rf"^{line}", log, re.MULTILINE)
    found = [text for text in found if "ChildFailedError" not in text]
    return found[-1].strip() if found else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
