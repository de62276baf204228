"""The interface of apex 25.04's `amp`, on native torch.

    model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
    ...
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

O0 trains in float32. O1 keeps float32 weights and casts by function (casts.py says where that differs from
apex). O2 has half weights, float32 batch norms and float32 masters in the optimizer. O3 is half throughout.
Half means float16, as in apex, unless `half_dtype` says otherwise; on CPUs it is bfloat16 by default.

As with apex, there is one state for the process: a second `initialize` replaces the first one's loss scalers.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from .casts import FLOAT, HALF, PROMOTE, FunctionCasts, casting, disable_casts, torch_functions
from .errors import ApexError
from .model import check_model, prepare_model
from .optimizer import prepare_optimizer
from .options import Options, settle
from .parallel import DistributedDataParallel
from .scaler import LossScaler

__all__ = [
    "disable_casts",
    "float_function",
    "half_function",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "reset",
    "scale_loss",
    "state_dict",
]


@dataclass
class _State:
    initialized: bool = False
    options: Options | None = None
    """None when amp was initialized with enabled=False"""
    scalers: list[LossScaler] = field(default_factory=list)
    registered: list[tuple[Any, str, str]] = field(default_factory=list)
    """(module, name of the function, rule), waiting for initialize"""
    replaced: list[tuple[Any, str, Callable]] = field(default_factory=list)
    """(module, name, original) of functions that torch does not let us intercept"""
    verbosity: int = 1


_state = _State()


def initialize(
    models: nn.Module | list[nn.Module],
    optimizers: Optimizer | list[Optimizer] | None = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
    *,
    half_dtype: torch.dtype | None = None,
) -> Any:
    """Prepare models and optimizers for mixed precision, in place; returns them in the shape they came.

    Comes after the optimizers are made and before any parallel wrapper. Options that are None are those of
    the `opt_level`. `loss_scale` is a number (a string of one will do) or "dynamic"; `num_losses` scalers of
    it are made. `min_loss_scale` and `max_loss_scale` bound a dynamic scale. `verbosity=0` is silent.

    `half_dtype` is not apex's: None means float16 where the model is on a GPU and bfloat16 on a CPU, where
    float16 convolutions are some fifty times slower. The loss scale works the same either way.

    Raises ApexError, a RuntimeError and ValueError, when the arguments do not fit together.
    """
    model_list = list(models) if isinstance(models, list | tuple) else [models]
    optimizer_list = list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]
    if optimizers is None:
        optimizer_list = []
    returned = models if optimizers is None else (models, optimizers)
    _state.verbosity = verbosity
    if not enabled:
        _state.initialized, _state.options, _state.scalers = True, None, []
        return returned

    overrides = {
        "cast_model_type": cast_model_type,
        "patch_torch_functions": patch_torch_functions,
        "keep_batchnorm_fp32": keep_batchnorm_fp32,
        "master_weights": master_weights,
        "loss_scale": loss_scale,
    }
    wrappers = (DistributedDataParallel, nn.parallel.DistributedDataParallel, nn.DataParallel)
    for model in model_list:
        check_model(model, wrappers)
    options = settle(opt_level, half_dtype or _default_half(model_list), overrides)

    casts = _function_casts(options) if options.patch_torch_functions else None
    for model in model_list:
        prepare_model(model, options, casts, cast_model_outputs)
    for optimizer in optimizer_list:
        prepare_optimizer(optimizer, bool(options.master_weights))
    _state.scalers = [
        LossScaler(options.loss_scale, min_loss_scale, max_loss_scale) for _ in range(num_losses)
    ]
    _state.initialized, _state.options = True, options
    _say(f"amp (stand-in): {options}")
    return returned


@contextlib.contextmanager
def scale_loss(
    loss: torch.Tensor,
    optimizers: Optimizer | list[Optimizer],
    loss_id: int = 0,
    model: nn.Module | None = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[torch.Tensor]:
    """Yield `loss` in float32 times the loss scale; on leaving, unscale the gradients for `optimizers`.

    Call backward on what is yielded, inside. Gradients add up over several uses before a step. When one is
    not finite under a dynamic scale, the next step of these optimizers does nothing and the scale halves.
    With `delay_unscale` the gradients stay scaled; a later use without it must come before the step.
    With `delay_overflow_check` the scale is left alone and no step is skipped. `model` is not used.
    """
    if not _state.initialized:
        raise ApexError(
            "amp.scale_loss comes after model, optimizer = amp.initialize(model, optimizer, opt_level=...)"
        )
    if _state.options is None:
        yield loss
        return
    if not 0 <= loss_id < len(_state.scalers):
        raise ApexError(
            f"loss_id={loss_id}, but there are {len(_state.scalers)} loss scaler(s); "
            "amp.initialize takes num_losses"
        )
    scaler = _state.scalers[loss_id]
    if not (_state.options.master_weights or scaler.dynamic) and scaler.scale == 1.0:
        yield loss.float()
        return

    amps = [_amp_side(optimizer) for optimizer in _as_list(optimizers)]
    if not delay_unscale:
        for amp in amps:
            amp.before_backward()
    yield loss.float() * scaler.scale
    if delay_unscale:
        for amp in amps:
            amp.gradients_scaled = True
        return
    overflow = any(
        [amp.after_backward(scaler) for amp in amps]
    )  # a list, as every optimizer must be unscaled
    if delay_overflow_check:
        return
    scaler.update(overflow)
    if overflow:
        for amp in amps:
            amp.skip_step = True
        _say(
            f"Gradient overflow.  Skipping step, loss scaler {loss_id} reducing loss scale to {scaler.scale}"
        )


def master_params(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The parameters that `optimizer` updates: the float32 masters where it has them.

    Clip these, between `scale_loss` and `step`: their gradients are unscaled.
    """
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state of the loss scalers: {"loss_scaler0": {"loss_scale": float, "unskipped": int}, ...}."""
    _check_initialized("amp.state_dict")
    destination = {} if destination is None else destination
    for index, scaler in enumerate(_state.scalers):
        destination[f"loss_scaler{index}"] = {"loss_scale": scaler.scale, "unskipped": scaler.unskipped}
    return destination


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Take the loss scalers' state from `amp.state_dict()`; comes after `amp.initialize`.

    Raises ApexError when it was saved with another number of them. Does nothing where amp is not enabled.
    """
    _check_initialized("amp.load_state_dict")
    if _state.options is None:
        return
    expected = [f"loss_scaler{index}" for index in range(len(_state.scalers))]
    if sorted(state_dict) != sorted(expected):
        raise ApexError(
            f"the amp state holds {', '.join(map(str, state_dict)) or 'nothing'}, this run has "
            f"{', '.join(expected)}; initialize amp with the same num_losses as when it was saved"
        )
    for key, scaler in zip(expected, _state.scalers, strict=True):
        scaler.scale = float(state_dict[key]["loss_scale"])
        scaler.unskipped = int(state_dict[key]["unskipped"])


def register_half_function(module: Any, name: str) -> None:
    """Let `module.name` run in half under O1. Comes before `amp.initialize`; wins over amp's own lists."""
    _register(module, name, HALF)


def register_float_function(module: Any, name: str) -> None:
    """Let `module.name` run in float32 under O1. Comes before `amp.initialize`; wins over amp's own lists."""
    _register(module, name, FLOAT)


def register_promote_function(module: Any, name: str) -> None:
    """Let `module.name` run in the widest of its arguments' dtypes under O1. Before `amp.initialize`."""
    _register(module, name, PROMOTE)


def half_function(function: Callable) -> Callable:
    """Decorator: `function` casts its arguments to half in an O1 model and on its half outputs."""
    return casting(function, HALF)


def float_function(function: Callable) -> Callable:
    """Decorator: `function` casts its arguments to float32 in an O1 model and on its half outputs."""
    return casting(function, FLOAT)


def promote_function(function: Callable) -> Callable:
    """Decorator: `function` casts half arguments to float32 when others are; where `float_function` does."""
    return casting(function, PROMOTE)


def reset() -> None:
    """Forget every earlier `initialize` and `register_*_function` in this process. Not apex's.

    Models and optimizers that were initialized stay as they are.
    """
    global _state
    for module, name, original in reversed(_state.replaced):
        setattr(module, name, original)
    _state = _State()


def _register(module: Any, name: str, rule: str) -> None:
    if not hasattr(module, name):
        raise ApexError(f"there is no function {name!r} in {getattr(module, '__name__', module)}")
    if _state.initialized:
        raise ApexError(
            f"register_{rule}_function({name!r}) comes before amp.initialize, where it takes effect; "
            "for a new run in the same process call amp.reset() first"
        )
    _state.registered.append((module, name, rule))


def _function_casts(options: Options) -> FunctionCasts:
    """The casts of O1 with what the user registered.

    A function of torch joins the lists; any other is replaced in its module by a casting one until `reset`,
    which outside O1 models only calls it.
    """
    rules = {}
    for module, name, rule in _state.registered:
        function = getattr(module, name)
        if function in torch_functions():
            rules[function] = rule
        else:
            _state.replaced.append((module, name, function))
            setattr(module, name, casting(function, rule))
    _state.registered.clear()
    return FunctionCasts(options.half_dtype, rules)


def _default_half(models: list[nn.Module]) -> torch.dtype:
    first = next((param for model in models for param in model.parameters()), None)
    return torch.bfloat16 if first is None or first.device.type == "cpu" else torch.float16


def _as_list(optimizers: Optimizer | list[Optimizer]) -> list[Optimizer]:
    return list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]


def _amp_side(optimizer: Optimizer) -> Any:
    if not hasattr(optimizer, "amp"):
        raise ApexError("amp.scale_loss was given an optimizer that has not been through amp.initialize")
    return optimizer.amp


def _check_initialized(caller: str) -> None:
    if not _state.initialized:
        raise ApexError(f"{caller} comes after amp.initialize, as that makes the loss scalers")


def _say(text: str) -> None:
    if _state.verbosity > 0 and not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0):
        print(text, flush=True)
