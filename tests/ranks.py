"""Runs variants and functions on several ranks, fast enough to do it in many tests.

Ranks are forked from a server process that has torch imported already, so one starts in a tenth of a second
rather than in several. That variants also start by their real commands is tested apart: test_commands.py.
"""

import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch.distributed as dist

import core

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = ROOT / "variants"
TIMEOUT_S = 120
TEST_IMAGES = 500

# As torchrun does: gloo's own threads know this alone, and round differently with another number of threads.
os.environ["OMP_NUM_THREADS"] = "1"

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["torch", "torch.distributed", "torchvision", "core", "tests.ranks"])


class RankError(AssertionError):
    """A rank failed: `exit_codes` has those of all ranks, `output` what they printed."""

    def __init__(self, exit_codes: Sequence[int | None], output: str) -> None:
        super().__init__(f"exit codes {list(exit_codes)}\n{output}")
        self.exit_codes, self.output = list(exit_codes), output


def run_ranks(function: Callable[..., None], world_size: int, *args: Any) -> str:
    """Call `function(*args)` in `world_size` processes with the environment a launcher sets.

    `function` is importable (a module's top level). Gives what the ranks printed; raises RankError.
    """
    # The parent holds the store on a port the system chose, so no two tests can collide.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"rank{rank}.log") for rank in range(world_size)]
        processes = [
            _server.Process(
                target=_rank_main, args=(function, args, rank, world_size, store.port, logs[rank])
            )
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        deadline = time.monotonic() + TIMEOUT_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        exit_codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
            process.join()
        output = "".join(log.read_text() for log in logs if log.exists())
    if any(code != 0 for code in exit_codes):  # None: it hung, and was killed
        raise RankError(exit_codes, output)
    return output


def _rank_main(
    function: Callable[..., None], args: tuple[Any, ...], rank: int, world_size: int, port: int, log: Path
) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # join the parent's store, do not open one
    )
    function(*args)


def run_script(path: Path, world_size: int, *flags: str, alone: bool = False) -> dict[str, Any]:
    """The raw record of the script at `path`, run as `__main__` on `world_size` ranks.

    `alone`: without the environment of a launcher, as a single-process script is started.
    """
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "record.json")
        run_ranks(run_as_main, world_size, str(path), [*flags, "--record", str(record)], alone)
        return json.loads(record.read_text())


def run_as_main(path: str, argv: list[str], alone: bool) -> None:
    """Run the script as `python path argv` would; `alone` as in `run_script`."""
    if alone:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            del os.environ[name]
    sys.argv = [path, *argv]
    sys.path.insert(0, str(VARIANTS))
    core.load_data = _with_few_test_images(core.load_data)
    runpy.run_path(path, run_name="__main__")


def _with_few_test_images(load_data: Callable[..., tuple]) -> Callable[..., tuple]:
    """These tests are about training: evaluating 10,000 images would take most of their time."""

    def loaded(cfg: Any) -> tuple:
        train_set, test_set = load_data(cfg)
        test_set.images, test_set.labels = test_set.images[:TEST_IMAGES], test_set.labels[:TEST_IMAGES]
        return train_set, test_set

    return loaded


@cache
def run_variant(name: str, world_size: int, *flags: str) -> dict[str, Any]:
    """`run_script` by name (or folder/name), remembered for the session: do not change the result."""
    path = VARIANTS / f"{name}.py"
    return run_script(path, world_size, *flags, alone="torchrun" not in path.read_text())
