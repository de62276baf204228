"""Which dtype mixed precision uses, and which dtype a step really computed in."""

import re
from typing import Any

import torch

from .config import Config, fail
from .ranks import rank

# What pick_amp_dtype gave in this process, for the record: whether it was also computed in is checked there.
_amp_dtype: torch.dtype | None = None

_MATRIX_NODES = ("Addmm", "Mm", "Bmm", "Convolution", "Linear", "Matmul", "CompiledFunction")


def pick_amp_dtype(cfg: Config, device: torch.device, on_gpus: torch.dtype | None = None) -> torch.dtype:
    """The dtype of `--amp-dtype`; auto is bfloat16 wherever the hardware has it, and on every CPU.

    `on_gpus`: what auto means on GPUs for a library that knows one 16-bit dtype alone.

    bfloat16 has the range of float32, so it needs no loss scaling. float16 on a CPU works but runs without
    native kernels in most builds, some fifty times slower than float32: it has to be asked for by name.
    """
    global _amp_dtype
    if cfg.dtype != "float32":
        fail(f"mixed precision starts from --dtype float32: autocast would leave {cfg.dtype} as it is")
    if cfg.amp_dtype != "auto":
        _amp_dtype = getattr(torch, cfg.amp_dtype)
        if _amp_dtype == torch.float16 and device.type == "cpu" and rank() == 0:
            print("note: float16 on a CPU has no native kernels: some fifty times slower", flush=True)
    else:
        _amp_dtype = torch.bfloat16 if device.type == "cpu" else on_gpus or _native_half()
    return _amp_dtype


def _native_half() -> torch.dtype:
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def asked_dtype(cfg: Config) -> str:
    """The dtype that this process's steps are to be computed in: that of mixed precision where it is used."""
    return dtype_name(_amp_dtype) if _amp_dtype else cfg.dtype


def computed_dtype(loss: torch.Tensor) -> str | None:
    """The dtype of the matrix products behind `loss` (0-d, with its graph), as autograd saw them.

    Reads the graph rather than the flags: an autocast that was silently disabled shows as float32 here. Of
    several dtypes the narrowest is named; None when the loss has no graph.
    """
    matrix_dtypes, all_dtypes = set(), set()
    seen, todo = set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo.extend(child for child, _ in node.next_functions)
        if "AccumulateGrad" in node.name():  # the parameter itself, not a computation
            continue
        found = {meta.dtype for meta in node._input_metadata if meta.dtype.is_floating_point}
        if "CompiledFunction" in node.name():
            found |= _compiled_dtypes(node)
        all_dtypes |= found
        if any(name in node.name() for name in _MATRIX_NODES):
            matrix_dtypes |= found
    dtypes = matrix_dtypes or all_dtypes
    return dtype_name(max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)) if dtypes else None


def _compiled_dtypes(node: Any) -> set[torch.dtype]:
    """Those of the buffers in the code that torch.compile wrote: to autograd its whole graph is one node."""
    forward = getattr(getattr(node, "_forward_cls", None), "compiled_fw", None)
    code = getattr(forward, "source_code", None) or ""
    names = set(re.findall(r"empty_strided\w*\(.+, torch\.(\w*float\d+)\)", code))
    return {getattr(torch, name) for name in names}


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float32` -> "float32"."""
    return str(dtype).removeprefix("torch.")
