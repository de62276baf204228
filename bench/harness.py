"""What every command that trains does before its first run and around all of them."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from bench.progress import Reporter

_NEEDED_BYTES = 20 * 2**20  # the record of an epoch takes about half a megabyte


class SessionError(Exception):
    """The command cannot be carried out. One line, for the user."""


@contextlib.contextmanager
def alone_in(folder: Path, reporter: Reporter) -> Iterator[bool | None]:
    """Whether no other command of this kind is at work on this machine; None where locks do not work."""
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


def default_timeout_s(cfg: Any) -> float:
    """Twenty images a second is slower than anything here but float16 on a CPU, which gets its time too."""
    images = cfg.epochs * (cfg.train_images or 60_000)
    return 300 + cfg.timeout + images / 20


def say_surroundings(reporter: Reporter, environment: dict[str, Any], ranks: int) -> None:
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


def prepare(*places: Path) -> None:
    """Find out before hours of training whether there is room for their results in these folders."""
    for place in places:
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
