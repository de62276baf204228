"""What `amp.initialize` does to a model: cast its weights, and cast what goes in and comes out."""

import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .casts import AmpTensor, FunctionCasts, map_tensors
from .errors import ApexError
from .options import Options

HALF_TYPES = (torch.float16, torch.bfloat16)


def check_model(model: nn.Module, parallel_wrappers: tuple[type, ...]) -> None:
    """Raise ApexError for a model that is wrapped already, or that is in half already."""
    if not isinstance(model, nn.Module):
        raise ApexError(f"amp.initialize takes a model or a list of models, got {type(model).__name__}")
    if isinstance(model, parallel_wrappers):
        raise ApexError(
            f"amp.initialize was given a model inside {type(model).__name__}; parallel wrappers come after "
            "amp.initialize, around the model it returns"
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.dtype in HALF_TYPES:
            raise ApexError(
                f"{name} is {tensor.dtype}; amp.initialize takes a float32 model and casts it itself, "
                "so leave out .half() or .bfloat16()"
            )


def prepare_model(
    model: nn.Module, options: Options, casts: FunctionCasts | None, output_dtype: torch.dtype | None
) -> None:
    """Cast `model` in place and make its forward cast too.

    `casts`: the functions' casts of O1, None at the other levels. `output_dtype`: of the outputs; None
    means float32 where the model is cast, and as they come where it is not.
    """
    input_dtype = options.cast_model_type or None
    if input_dtype is not None:
        output_dtype = output_dtype or torch.float32
        cast_weights(model, input_dtype, keep_batchnorm=bool(options.keep_batchnorm_fp32))
    if input_dtype in HALF_TYPES:
        model.register_state_dict_post_hook(_save_float32)
        model.register_load_state_dict_pre_hook(_load_masters)
    _wrap_forward(model, input_dtype, output_dtype, casts)
    model._replicate_for_data_parallel = _refuse_replicas


def cast_weights(model: nn.Module, dtype: torch.dtype, keep_batchnorm: bool) -> None:
    """Cast parameters and buffers in place, so that an optimizer made before still holds them.

    With `keep_batchnorm`, batch norms (SyncBatchNorm too) stay as they are, unless they have no weights:
    apex casts those.
    """
    for module in model.modules():
        if keep_batchnorm and isinstance(module, _BatchNorm) and module.affine:
            continue
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            if tensor.is_floating_point():
                gradient, tensor.grad = tensor.grad, None
                tensor.data = tensor.data.to(dtype)
                tensor.grad = None if gradient is None else gradient.to(dtype)
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


def _wrap_forward(
    model: nn.Module,
    input_dtype: torch.dtype | None,
    output_dtype: torch.dtype | None,
    casts: FunctionCasts | None,
) -> None:
    own = vars(model).get("forward")  # a forward that someone set on this very object
    inner: Callable = (lambda _, *args, **kwargs: own(*args, **kwargs)) if own else type(model).forward

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = AmpTensor.unmark((args, kwargs))
        if input_dtype is not None:
            args, kwargs = cast_values((args, kwargs), input_dtype)
        with casts or nullcontext():
            output = inner(self, *args, **kwargs)
        if output_dtype is not None:
            return cast_values(output, output_dtype)
        return AmpTensor.mark(output, casts) if casts else output

    # A bound method, as copy.deepcopy binds it to the copy; a plain function would go on using this model.
    model.forward = types.MethodType(forward, model)


def cast_values(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating-point tensors in `dtype`.

    Looks into tuples, lists and dicts; an object of another class is asked itself when it has `.to`.
    """
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return type(value)(cast_values(item, dtype) for item in value)
    if isinstance(value, dict):
        return {key: cast_values(item, dtype) for key, item in value.items()}
    if hasattr(value, "to") and not isinstance(value, torch.Tensor):
        return value.to(dtype)
    return map_tensors(value, lambda tensor: tensor.to(dtype))


def _refuse_replicas(*_: Any) -> NoReturn:
    raise ApexError(
        "nn.DataParallel cannot copy a model that amp.initialize has prepared, as its casts belong to one "
        "device; use one process per device and parallel.DistributedDataParallel"
    )


def _save_float32(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict) -> None:
    """Write float32 values for half weights: the exact ones of the optimizer where it has them.

    So a checkpoint fits a float32 model, and resuming from it loses no bits. A master that does not round to
    its weight is out of date: the weight was changed by other means than a step.
    """
    masters = {prefix + name: getattr(param, "amp_master", None) for name, param in module.named_parameters()}
    for key, value in state_dict.items():
        if key.startswith(prefix) and isinstance(value, torch.Tensor) and value.dtype in HALF_TYPES:
            master = masters.get(key)
            fits = master is not None and torch.equal(master.detach().to(value.dtype), value)
            state_dict[key] = master.detach() if fits else value.float()


def _load_masters(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load the optimizer's float32 copies too; else the next step would bring the old weights back."""
    for name, param in module.named_parameters():
        master, value = getattr(param, "amp_master", None), state_dict.get(prefix + name)
        if master is not None and value is not None and value.shape == master.shape:
            master.data.copy_(value)
