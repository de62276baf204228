"""Which device a rank computes on, with how many threads, and over which backend it talks."""

import math
import os
from pathlib import Path

import torch


def pick_device(local_rank: int = 0) -> torch.device:
    """The device of this rank: its GPU when there are any, else the CPU.

    The usable cores are shared out evenly over the ranks of this machine, however they were
    started. Left alone, torchrun would give each rank one thread, and spawn would give every rank all
    cores; either way one would measure threads rather than a method.
    """
    threads = max(1, usable_cores() // local_world_size())
    torch.set_num_threads(threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # where it is unset, accelerate would decide anew
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)  # else every rank opens a context on GPU 0 too
        return device
    return torch.device("cpu")


def backend_for(device: torch.device) -> str:
    """nccl for a GPU of one's own; gloo for CPUs, and for ranks that share a GPU, which nccl refuses."""
    own_gpu = device.type == "cuda" and local_world_size() <= torch.cuda.device_count()
    return "nccl" if own_gpu else "gloo"


def local_world_size() -> int:
    """Ranks on this machine, as the launcher said; 1 without a launcher."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def usable_cores() -> int:
    """Cores this process may use: its affinity mask, cut by the quota of its container, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(cores, math.floor(quota)) if quota else cores)


def _cgroup_quota() -> float | None:
    """CPUs allowed by the control group (version 2, then 1); None where there is no limit."""
    root = Path("/sys/fs/cgroup")
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        return None if limit_us < 0 else limit_us / int((root / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
