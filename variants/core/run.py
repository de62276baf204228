"""How a variant starts and ends, whatever happens in between."""

import functools
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

from .config import Config, fail, unavailable


def run(main: Callable[[Config], None]) -> None:
    """`main(Config.from_cli())` for a variant's `__main__` guard.

    A mistake in the flags, or a variant that wants a launcher and was started without one, ends with one
    line and exit code 2. The process group is taken down also when `main` raises, so that the other ranks
    see a closed connection at once and not after their timeout.
    """
    cfg = Config.from_cli()
    try:
        main(cfg)
    except KeyError as error:
        if error.args != ("LOCAL_RANK",) or "LOCAL_RANK" in os.environ:
            raise
        fail(f"this variant is started once per rank by a launcher: {_launch_command()}")
    except mp.ProcessExitedException as error:
        if error.exit_code not in (2, 69):  # those have said what is wrong in a line of their own
            raise
        sys.exit(error.exit_code)
    except Exception as error:
        if "InvalidCxxCompiler" not in f"{error!r} {error.__cause__!r}":
            raise
        unavailable("torch.compile needs a C++ compiler on CPUs: install g++, or name yours in CXX")
    finally:
        _leave_group()


def leaving_the_group(worker: Callable[..., None]) -> Callable[..., None]:
    """`worker`, the function of a spawned rank, made to leave its process group also when it raises."""

    @functools.wraps(worker)
    def wrapped(*args: Any) -> None:
        try:
            worker(*args)
        finally:
            _leave_group()

    return wrapped


def _leave_group() -> None:
    # After an error a NCCL group may wait for ranks that will never come: there the launcher ends us.
    if dist.is_initialized() and (sys.exc_info()[0] is None or dist.get_backend() == "gloo"):
        dist.destroy_process_group()
    # A DDP model lies in a reference cycle and holds the group. Freed by the interpreter's own end, its
    # gloo threads abort the process now and then.
    gc.collect()


def _launch_command() -> str:
    """The command in the docstring of the script that runs."""
    docstring = sys.modules["__main__"].__doc__ or ""
    commands = [line.strip() for line in docstring.splitlines() if line.strip().startswith("torchrun")]
    return commands[0] if commands else f"torchrun --standalone --nproc-per-node 2 {sys.argv[0]}"
