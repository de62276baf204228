"""Downloading a data set through torchvision: once per machine, whole or not at all."""

import os
import platform
import shutil
import threading
import time
from pathlib import Path
from typing import NoReturn

from .config import fail
from .idx_files import CLASS_NAMES, FILES, torchvision_class

FIRST_BYTE_S = 6.0
"""A download that has brought nothing after this long counts as offline."""
STALL_S = 60.0
"""One that had begun and brings nothing more for this long counts as broken off."""


def default_root() -> Path:
    """Where downloads go without `--data-dir`: a cache folder of the user's."""
    from platformdirs import user_cache_path

    return user_cache_path("ddp-side-by-side", appauthor=False)


def missing(folder: Path) -> list[str]:
    return [file for file, _ in FILES.values() if not (folder / file).is_file()]


def download_once(dataset: str, root: Path, folder: Path) -> None:
    """Download what is missing in the folder; of all processes on this machine one does, the others wait.

    A lock on a file, not a barrier of the process group: it also holds between runs that know nothing of
    each other, and on several machines each fills its own disk.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(root / f".{CLASS_NAMES[dataset]}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
            waited = False
        except Timeout:
            lock.acquire()
            waited = True
    except (OSError, NotImplementedError) as error:
        _fail_missing(
            dataset, folder, f"nothing can be written there ({getattr(error, 'strerror', None) or error})"
        )
    problem = None
    try:
        if missing(folder):
            # Each in its turn trying again would take minutes to say the same.
            problem = "another process could not download it" if waited else _download(dataset, root, folder)
    finally:
        lock.release()
    if problem:  # said after the release: the rank that speaks for this machine may be waiting for the lock
        _fail_missing(dataset, folder, problem)


def _download(dataset: str, root: Path, folder: Path) -> str | None:
    """Fill the folder; returns why it could not, if it could not."""
    # Into a folder aside, and moved when complete: a half file never lies where the data are looked for.
    aside = root / f".{CLASS_NAMES[dataset]}.part"
    shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
    raw_aside = aside / CLASS_NAMES[dataset] / "raw"
    try:
        raw_aside.mkdir(parents=True)
        for archive in folder.glob("*.gz"):  # put there by hand, or left over: no need to download them
            shutil.copyfile(archive, raw_aside / archive.name)
        problem = _download_into(aside, raw_aside, dataset)
        if problem:
            return f"the download failed ({problem})"
        still_missing = missing(folder)
        for path in sorted(raw_aside.iterdir()):
            if path.name.removesuffix(".gz") in still_missing:
                os.replace(path, folder / path.name)
        return None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _download_into(aside: Path, raw_aside: Path, dataset: str) -> str | None:
    """Let torchvision download and unpack; returns why it could not, if it could not.

    In a thread, as torchvision sets no time-out: it would hang for minutes behind a firewall that drops
    packets.
    """
    source = torchvision_class(dataset)
    problems: list[str] = []

    def work() -> None:
        try:
            source(aside, download=True)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            problems.append(lines[-1].strip("<>"))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    begun, last_size, last_growth = False, _size(raw_aside), time.monotonic()
    while thread.is_alive():
        thread.join(0.1)
        size = _size(raw_aside)
        if size > last_size:
            begun, last_size, last_growth = True, size, time.monotonic()
        silent_s = time.monotonic() - last_growth
        if silent_s > (STALL_S if begun else FIRST_BYTE_S):
            return f"nothing arrived for {silent_s:.0f} s"
    return problems[0] if problems else None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _fail_missing(dataset: str, folder: Path, reason: str) -> NoReturn:
    wanted = dict(torchvision_class(dataset).resources)
    files = ", ".join(f"{file}.gz (MD5 {wanted[file + '.gz']})" for file in missing(folder))
    fail(
        f"{dataset} is not in {folder}{on_this_node()}, and {reason}. What works offline: "
        "--dataset mnist without --data-dir, which comes with the project; "
        f"or put into that folder {files}"
    )


def on_this_node() -> str:
    """Names the machine in a message when the run has several, as each has a disk of its own."""
    ranks, ranks_here = os.environ.get("WORLD_SIZE"), os.environ.get("LOCAL_WORLD_SIZE")
    return f" on {platform.node()}" if ranks and ranks_here and ranks != ranks_here else ""
