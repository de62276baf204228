"""Small answers about the process group that hold with and without one."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def grouped() -> bool:
    """Whether this process is one of several ranks that can talk."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank() if grouped() else 0


def world_size() -> int:
    """How many ranks train together; 1 without a process group."""
    return dist.get_world_size() if grouped() else 1


def gather(value: Any) -> list[Any] | None:
    """Every rank's `value` (picklable) in rank order on rank 0, None on the others. All ranks call it."""
    if not grouped():
        return [value]
    values = [None] * world_size() if rank() == 0 else None
    dist.gather_object(value, values)
    return values


def agreed(value: Any) -> bool:
    """Whether `value` (picklable) is equal on all ranks. All ranks call it and get the same answer."""
    if not grouped():
        return True
    values = [None] * world_size()
    dist.all_gather_object(values, value)
    return all(other == value for other in values)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself, or all of one that lies in shards on the ranks (FSDP): then all ranks must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself, or this rank's shard of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside DataParallel, DDP and torch.compile wrappers, in whatever order they nest.

    Its state_dict has the same keys for every variant, so any checkpoint loads into any other.
    """
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            model = model.module
        else:
            return model
