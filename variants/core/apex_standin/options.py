"""What an opt level means: defaults, and the overrides that fit to it."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from .errors import ApexError


@dataclass
class Options:
    """The settled options of one `amp.initialize`."""

    opt_level: str
    half_dtype: torch.dtype
    cast_model_type: torch.dtype | None
    """weights, inputs and buffers are cast to it; None leaves the model as it is"""
    patch_torch_functions: bool
    """cast by function inside the model (O1)"""
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    """the optimizer updates float32 copies of the half weights"""
    loss_scale: float | str
    """a number, or "dynamic\""""


def settle(opt_level: str, half_dtype: torch.dtype, overrides: dict[str, Any]) -> Options:
    """The options of `opt_level` after `overrides`, of which those that are None do not count.

    Raises ApexError for an unknown level, an override of a wrong type, or one the level rules out.
    """
    options = _defaults(opt_level, half_dtype)
    given = {name: value for name, value in overrides.items() if value is not None}
    if opt_level == "O1":
        _check_o1(given)
    elif given.get("patch_torch_functions"):
        raise ApexError("patch_torch_functions=True is what opt_level='O1' does; choose that level instead")
    if "keep_batchnorm_fp32" in given:
        given["keep_batchnorm_fp32"] = _boolean(given["keep_batchnorm_fp32"])
    if "loss_scale" in given:
        given["loss_scale"] = _loss_scale(given["loss_scale"])
    for name, value in given.items():
        setattr(options, name, value)
    return options


def _defaults(opt_level: str, half: torch.dtype) -> Options:
    if opt_level == "O0":
        return Options("O0", half, torch.float32, False, None, False, 1.0)
    if opt_level == "O1":
        return Options("O1", half, None, True, None, None, "dynamic")
    if opt_level == "O2":
        return Options("O2", half, half, False, True, True, "dynamic")
    if opt_level == "O3":
        return Options("O3", half, half, False, False, False, 1.0)
    hint = ""
    if isinstance(opt_level, str) and opt_level[:1] in ("0", "o"):
        hint = ": it starts with the capital letter O, not the digit zero or a small o"
    raise ApexError(f"unknown opt_level {opt_level!r}{hint}; there are 'O0', 'O1', 'O2' and 'O3'")


def _check_o1(given: dict[str, Any]) -> None:
    if "keep_batchnorm_fp32" in given:
        raise ApexError(
            "keep_batchnorm_fp32 does not go with opt_level='O1', which leaves all weights in float32"
        )
    if "master_weights" in given:
        raise ApexError(
            "master_weights does not go with opt_level='O1': there the weights themselves are float32"
        )
    if given.get("cast_model_type") not in (None, False, torch.float32):
        raise ApexError(
            "cast_model_type does not go with opt_level='O1', which casts inside functions; "
            "'O2' and 'O3' cast the model"
        )


def _boolean(value: Any) -> bool:
    if value in (True, "True"):
        return True
    if value in (False, "False"):
        return False
    raise ApexError(f"keep_batchnorm_fp32 takes True, False, 'True' or 'False', got {value!r}")


def _loss_scale(value: Any) -> float | str:
    if value == "dynamic":
        return value
    try:
        scale = float(value)
    except (TypeError, ValueError):
        scale = math.nan
    if not (math.isfinite(scale) and scale > 0):
        raise ApexError(
            f"loss_scale takes 'dynamic' or a positive number such as 128.0 or '128.0', got {value!r}"
        )
    return scale
