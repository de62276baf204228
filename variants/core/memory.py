"""How much memory a rank used, in bytes; None where it cannot be known."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .ranks import local

_training_peaks: dict[str, int | None] | None = None


def note_training_peaks(device: torch.device) -> None:
    """Keep the peaks of before the first evaluation, whose batches are far larger than those of a step."""
    global _training_peaks
    if _training_peaks is None:
        _training_peaks = _peaks_now(device)


def memory_peaks(device: torch.device) -> dict[str, int | None]:
    """The peaks of this process in training, as noted before the first evaluation; else those so far.

    peak_allocated, peak_reserved: tensors, and what the caching allocator holds for them, on a GPU.
    peak_rss: host memory mapped in, shared pages counted in full. pss: host memory now, each shared page
    counted 1/n for n processes, so that it adds up over ranks.
    """
    return _training_peaks or _peaks_now(device)


def _peaks_now(device: torch.device) -> dict[str, int | None]:
    on_gpu = device.type == "cuda"
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(device) if on_gpu else None,
        "peak_rss_bytes": peak_rss_bytes(),
        "pss_bytes": _proc_kib("/proc/self/smaps_rollup", "Pss:"),
    }


def training_state_bytes(model: nn.Module | None, optimizer: Any) -> dict[str, int | None]:
    """What this rank holds of weights and optimizer state: its own shard where they are sharded."""
    held = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer keeps its share in one of its own
    states = getattr(held, "state", {}).values()
    return {
        "weight_bytes": _bytes(model.parameters()) if model is not None else None,
        "optimizer_bytes": _bytes(value for state in states for value in state.values()) if held else None,
    }


def _bytes(values: Iterable[Any]) -> int:
    tensors = (local(value) for value in values if isinstance(value, torch.Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def peak_rss_bytes() -> int | None:
    """The high-water mark of this process's resident memory."""
    # ru_maxrss would survive exec, so that a small rank shows the peak of the launcher that started it.
    high_water = _proc_kib("/proc/self/status", "VmHWM:")
    if high_water is not None:
        return high_water
    if sys.platform == "win32":
        return None
    import resource  # there is none on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, KiB elsewhere


def _proc_kib(path: str, key: str) -> int | None:
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
