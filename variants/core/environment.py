"""What a number depends on besides the code. `python -m core.environment` prints it as JSON."""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .device import usable_cores

_PACKAGES = ("torch", "torchvision", "numpy", "accelerate", "apex")


def environment() -> dict[str, Any]:
    """Plain values only, the same on every rank of one machine; no path and no name of a person or host."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "usable_cores": usable_cores(),
        "memory_bytes": _memory_bytes(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "nccl": _nccl_version(),
        # On Ampere and newer float32 convolutions are TF32 by default: 10 bits of precision, not 23.
        "tf32_convolutions": torch.backends.cudnn.allow_tf32 if torch.cuda.is_available() else None,
        "host": host_id(),
    }


def host_id() -> str:
    """Eight hex digits that tell machines apart without giving their names away."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nccl_version() -> str | None:
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def _cpu_name() -> str:
    """The processor's model as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return re.sub(r"\s+", " ", re.sub(r"\((R|TM)\)|CPU @.*|Processor", "", value)).strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


if __name__ == "__main__":
    print(json.dumps(environment()))
