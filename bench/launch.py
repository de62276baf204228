"""The command line and the environment that start a variant."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.plan import Job
from bench.registry import VARIANTS_DIR

# What a launcher or a cluster around us says about ranks, and thread counts: neither is about our children.
_SCRUBBED_NAMES = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OMP_DYNAMIC",
    "MKL_NUM_THREADS",
    "MKL_DYNAMIC",
    "OPENBLAS_NUM_THREADS",
}
_SCRUBBED_PREFIXES = ("ROLE_", "TORCHELASTIC_", "PET_", "ACCELERATE_", "OMPI_COMM_WORLD_", "PMI_", "BENCH_")


def threads_per_rank(usable_cores: int, ranks: int) -> int:
    """One policy for all rows: the usable cores, shared out evenly."""
    return max(1, usable_cores // ranks)


def threads_of(job: Job, usable_cores: int) -> int:
    """The threads of each of the job's ranks."""
    return job.threads or threads_per_rank(usable_cores, job.world_size)


def probe_environment(surroundings: Mapping[str, str]) -> dict[str, str]:
    """`surroundings` without what is said there of ranks and threads, and with `core` to be imported."""
    kept = {
        name: value
        for name, value in surroundings.items()
        if name not in _SCRUBBED_NAMES and not name.startswith(_SCRUBBED_PREFIXES)
    }
    # A user's own file elsewhere can `from core import ...` as ours do.
    kept["PYTHONPATH"] = os.pathsep.join([str(VARIANTS_DIR), *filter(None, [kept.get("PYTHONPATH")])])
    return kept


def child_environment(
    surroundings: Mapping[str, str], job: Job, usable_cores: int, progress: Path
) -> dict[str, str]:
    """The environment of a job's processes, whatever the harness itself was started under."""
    kept = probe_environment(surroundings)
    kept["PYTHONUNBUFFERED"] = "1"  # else a killed rank's last words are lost
    kept["OMP_NUM_THREADS"] = str(threads_of(job, usable_cores))
    kept["BENCH_PROGRESS"] = str(progress)
    if job.variant.ranks == "itself":
        kept["WORLD_SIZE"] = str(job.world_size)
    if sys.platform == "win32":
        kept["USE_LIBUV"] = "0"  # torch's Windows builds come without it, yet ask for it by default
    return kept


def command(job: Job, flags: list[str]) -> list[str]:
    """The command that starts all ranks of a job."""
    script = [str(job.variant.path), *flags]
    size = str(job.world_size)
    if job.launcher == "torchrun":
        # --standalone: the rendezvous takes a free port of its own, so jobs side by side do not collide.
        how = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", size]
    elif job.launcher == "launch":
        how = ["-m", "torch.distributed.launch", "--standalone", "--nproc-per-node", size]
    elif job.launcher == "spawn" and job.variant.ranks == "launcher":
        how = ["-m", "core.spawn", size]
    else:
        how = []
    return [sys.executable, *how, *script]
