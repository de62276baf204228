"""Starts the ranks of any script with torch.multiprocessing.spawn, in place of torchrun.

    python -m core.spawn 2 variants/ddp.py --epochs 1

The ranks get the environment that torchrun would set. They are daemons, which end with this process but may
have no children: a script whose DataLoader has workers needs torchrun.
"""

import os
import runpy
import sys

import torch.distributed as dist
import torch.multiprocessing as mp


def main() -> None:
    """Run `python -m core.spawn RANKS SCRIPT [FLAG...]` to its end."""
    if len(sys.argv) < 3 or not sys.argv[1].isdigit():
        sys.exit("usage: python -m core.spawn RANKS SCRIPT [FLAG...]")
    world_size = int(sys.argv[1])
    # The store listens on a port the system chose and is held here: no other job can take it in between.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        mp.spawn(_rank, args=(world_size, store.port, sys.argv[2:]), nprocs=world_size, daemon=True)
    except mp.ProcessExitedException as error:
        if error.exit_code not in (2, 69):  # those have said what is wrong in a line of their own
            raise
        sys.exit(error.exit_code)


def _rank(rank: int, world_size: int, port: int, argv: list[str]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="core.spawn",  # so that rank 0 alone speaks of a mistake they all find
        TORCHELASTIC_USE_AGENT_STORE="True",  # join the store at that port, do not open one
    )
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))  # as `python SCRIPT` would have it
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
