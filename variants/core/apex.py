"""The one import of the apex variants: the real apex where it can run, else our stand-in.

    from core.apex import amp, apex_backend, initialize_options, parallel

NVIDIA removed `amp` and `parallel` from apex in May 2025, PyPI's `apex` is another project, and the real
one needs CUDA. So most machines get the stand-in (apex_standin/); `apex_backend()` says which one ran.
"""

import importlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from . import apex_standin
from .config import Config, fail
from .precision import pick_amp_dtype

LAST_TAG = "25.04"
LAST_COMMIT = "e13873de"
STAND_IN = "stand-in"
NOT_NVIDIA = "the package named apex on PyPI is an unrelated web toolkit, not NVIDIA apex"


@dataclass(frozen=True)
class ApexBackend:
    """Which implementation `amp` and `parallel` are, and why."""

    name: str
    """"apex VERSION" or "stand-in\""""
    reason: str
    """in one line"""
    cuda_ext: bool | None
    """whether apex's compiled kernels (amp_C) can be imported; None where NVIDIA apex is not installed"""


def apex_backend() -> ApexBackend:
    """Which implementation this process uses; settled when this module was imported."""
    return _backend


def initialize_options(cfg: Config, device: torch.device) -> dict[str, Any]:
    """What `amp.initialize` is given: `--opt-level`, and for the stand-in the dtype that stands for half.

    The real apex knows float16 alone, which on a CPU would be some fifty times slower than float32.
    """
    if cfg.dtype != "float32":
        fail(f"apex amp casts to float32 or narrower at every opt level: there is no --dtype {cfg.dtype}")
    if cfg.opt_level == "O0":
        return {"opt_level": "O0"}
    half_dtype = pick_amp_dtype(cfg, device, on_gpus=torch.float16)
    if _backend.name == STAND_IN:
        return {"opt_level": cfg.opt_level, "half_dtype": half_dtype}
    if half_dtype != torch.float16:
        fail(f"--amp-dtype {cfg.amp_dtype}: {_backend.name} computes in float16 alone")
    return {"opt_level": cfg.opt_level}


def _choose() -> tuple[ModuleType, ModuleType, ApexBackend]:
    def stand_in(reason: str, cuda_ext: bool | None = None) -> tuple[ModuleType, ModuleType, ApexBackend]:
        return apex_standin.amp, apex_standin.parallel, ApexBackend(STAND_IN, reason, cuda_ext)

    spec = _find("apex")
    if spec is None or spec.origin is None:  # nothing, or a mere folder of that name
        return stand_in("apex is not installed")
    apex, error = _import("apex")
    if _is_web_toolkit(error):
        return stand_in(NOT_NVIDIA)
    if apex is None:
        return stand_in(f"apex is installed but cannot be imported: {error}")
    name = _name(apex)
    missing = [part for part in ("amp", "parallel") if _find(f"apex.{part}") is None]
    if missing:
        return stand_in(
            f"{name} has no {' and no '.join(missing)}: NVIDIA removed amp and parallel in May 2025; "
            f"the last tag with them is {LAST_TAG} (commit {LAST_COMMIT})"
        )
    cuda_ext = _import("amp_C")[0] is not None
    if not torch.cuda.is_available():
        return stand_in("apex needs CUDA; there is none here", cuda_ext)
    amp, amp_error = _import("apex.amp")
    parallel, parallel_error = _import("apex.parallel")
    if amp is None or parallel is None:
        return stand_in(
            f"{name} is installed but cannot be imported: {amp_error or parallel_error}", cuda_ext
        )
    return amp, parallel, ApexBackend(name, "apex is installed and there is CUDA", cuda_ext)


def _find(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except Exception:  # a parent package that breaks on import, or something that is not a package
        return None


def _import(module: str) -> tuple[ModuleType | None, str]:
    """(the module, "") or (None, the error in one line); whatever a broken package raises stays in here."""
    try:
        return importlib.import_module(module), ""
    except (Exception, SystemExit) as error:
        return None, " ".join(f"{type(error).__name__}: {error}".split())


def _is_web_toolkit(import_error: str) -> bool:
    """Whether the package named apex is the one from PyPI, which is built on Pyramid."""
    if "pyramid" in import_error.lower():
        return True
    try:
        return "pyramid" in (importlib.metadata.metadata("apex")["Summary"] or "").lower()
    except importlib.metadata.PackageNotFoundError:
        return False


def _name(apex: ModuleType) -> str:
    """apex with the version it gives itself. NVIDIA's own builds long said 0.1, whatever the tag."""
    version = getattr(apex, "__version__", None)
    if version is None:
        try:
            version = importlib.metadata.version("apex")
        except importlib.metadata.PackageNotFoundError:
            return "apex"
    return f"apex {version}"


amp, parallel, _backend = _choose()
