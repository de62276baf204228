"""O1: cast by function. Which functions run in half, which in float32, and where that holds.

apex replaces some hundred functions of torch by casting ones, for the whole process and for good. Here
the casts hold in two places only, so that a later float32 run in the same process is a float32 run:

- inside the forward of an initialized model (a `TorchFunctionMode`, entered and left with each call);
- on the half tensors which that forward returned, and on what is computed from them as long as it is
  half (`AmpTensor`). So `F.cross_entropy(model(images), labels)` is a float32 loss, as with apex.

Four differences follow. Outside these places a float32 tensor stays float32, where apex would halve it
for a matrix product: a submodule called past the forward of its model computes in float32. In-place
functions are left to torch, where apex refuses some of them on half tensors. Each use of a weight casts it
anew, where apex keeps the cast weight until the end of the backward pass. And what torch.utils.checkpoint
repeats during backward is repeated without casts, which torch reports as an error.
"""

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode, get_default_nowrap_functions, get_overridable_functions

from .errors import ApexError

HALF, FLOAT, PROMOTE, BANNED, NATIVE = "half", "float", "promote", "banned", "native"

# Names that a module lacks (not all functions are methods, some are gone from torch) are passed over.
_MATRIX_PRODUCTS = "addmm addmv addr matmul mm mv addbmm baddbmm bmm prelu"
_CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc"
_RECURRENT = "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"
_MATHEMATICS = (
    "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan pow cumprod cumsum dist norm "
    "prod std sum var renorm"
)
_PROMOTED = "addcdiv addcmul atan2 cross bilinear dot add div mul eq equal ge gt le lt ne cat stack"
_FUNCTIONAL = (
    "interpolate grid_sample softplus softmin log_softmax softmax gelu gumbel_softmax layer_norm group_norm "
    "local_response_norm normalize cosine_similarity poisson_nll_loss cosine_embedding_loss cross_entropy "
    "hinge_embedding_loss kl_div l1_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "multilabel_soft_margin_loss multi_margin_loss nll_loss binary_cross_entropy_with_logits smooth_l1_loss "
    "soft_margin_loss triplet_margin_loss"
)
_LISTS = (
    (torch, HALF, f"{_CONVOLUTIONS} {_MATRIX_PRODUCTS} {_RECURRENT}"),
    (torch, FLOAT, _MATHEMATICS),
    (torch, PROMOTE, _PROMOTED),
    (torch.Tensor, HALF, f"{_MATRIX_PRODUCTS} __matmul__ __rmatmul__"),
    (torch.Tensor, FLOAT, f"{_MATHEMATICS} __pow__ __rpow__ cpu"),
    (torch.Tensor, PROMOTE, f"{_PROMOTED} sub __rsub__ __rdiv__ __eq__ __ge__ __gt__ __le__ __lt__ __ne__"),
    (F, HALF, f"{_CONVOLUTIONS} linear"),
    (F, FLOAT, _FUNCTIONAL),
    (F, BANNED, "binary_cross_entropy"),
    # Written in Python out of listed functions, which a mode cannot see into: native autocast stands in.
    (F, NATIVE, "multi_head_attention_forward"),
)


@functools.cache
def _listed() -> dict[Callable, str]:
    named = ((getattr(module, name, None), rule) for module, rule, names in _LISTS for name in names.split())
    return {function: rule for function, rule in named if function is not None}


@functools.cache
def torch_functions() -> frozenset[Callable]:
    """Every function and method that torch lets a mode intercept."""
    return frozenset(function for functions in get_overridable_functions().values() for function in functions)


class FunctionCasts(TorchFunctionMode):
    """The casts of one `amp.initialize` at O1: a context manager, in force in the thread that entered it."""

    def __init__(self, half_dtype: torch.dtype, registered: dict[Callable, str]) -> None:
        super().__init__()
        self.half_dtype = half_dtype
        self.rules = {**_listed(), **registered}

    def __enter__(self) -> "FunctionCasts":
        _thread.casts = (*_thread.casts, self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        _thread.casts = _thread.casts[:-1]
        super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self.call(self.rules.get(func), func, args, kwargs or {})

    def call(self, rule: str | None, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """`func(*args, **kwargs)` with the floating-point tensors among the arguments cast by `rule`."""
        if rule is None or _thread.disabled:
            return func(*args, **kwargs)
        if rule == NATIVE:
            query = args[0] if args else kwargs["query"]
            with torch.autocast(query.device.type, dtype=self.half_dtype):
                return func(*args, **kwargs)
        if rule in (PROMOTE, BANNED):
            found: set[torch.dtype] = set()
            map_tensors((args, kwargs), lambda tensor: found.add(tensor.dtype) or tensor)
            if rule == BANNED and self.half_dtype in found:
                raise ApexError(
                    f"{func.__name__} is not safe on {self.half_dtype} probabilities: give the logits to "
                    "binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss), or call "
                    "amp.register_float_function(torch, 'sigmoid') before amp.initialize"
                )
            if not {self.half_dtype, torch.float32} <= found:
                return func(*args, **kwargs)
        dtype = self.half_dtype if rule == HALF else torch.float32
        args, kwargs = map_tensors((args, kwargs), lambda tensor: tensor.to(dtype))
        return func(*args, **kwargs)


class _Thread(threading.local):
    casts: tuple[FunctionCasts, ...] = ()
    disabled = False


_thread = _Thread()


class disable_casts:
    """Context manager: no function casts its arguments inside, in this thread."""

    def __enter__(self) -> None:
        self.before, _thread.disabled = _thread.disabled, True

    def __exit__(self, *error: Any) -> None:
        _thread.disabled = self.before


class AmpTensor(torch.Tensor):
    """A half tensor out of an O1 model: functions called on it cast as they do inside the model.

    What comes out in half is an AmpTensor again; what comes out in float32 (a loss) is a plain tensor.
    """

    casts: FunctionCasts | None = None

    @staticmethod
    def mark(value: Any, casts: FunctionCasts) -> Any:
        """`value` with its half tensors marked, in containers too."""

        def mark_one(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dtype != casts.half_dtype or isinstance(tensor, AmpTensor):
                return tensor
            marked = tensor.as_subclass(AmpTensor)
            marked.casts = casts
            return marked

        with torch._C.DisableTorchFunctionSubclass():
            return map_tensors(value, mark_one)

    @staticmethod
    def unmark(value: Any) -> Any:
        """`value` with plain tensors in place of marked ones."""

        def unmark_one(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.as_subclass(torch.Tensor) if isinstance(tensor, AmpTensor) else tensor

        with torch._C.DisableTorchFunctionSubclass():
            return map_tensors(value, unmark_one)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            casts = _casts_of((args, kwargs))
            if casts is None or func in get_default_nowrap_functions():
                return func(*args, **kwargs)
            return cls.mark(casts.call(casts.rules.get(func), func, args, kwargs), casts)

    # What leaves the process, and what is copied or printed, is a plain tensor.

    def __reduce_ex__(self, protocol: int) -> Any:
        return AmpTensor.unmark(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(AmpTensor.unmark(self), memo)

    def __format__(self, spec: str) -> str:
        return format(AmpTensor.unmark(self), spec)


def map_tensors(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with `function` applied to each floating-point tensor in its tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value) if value.is_floating_point() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if type(value) in (tuple, list) or type(value).__module__ == "torch.return_types":
        return type(value)([map_tensors(item, function) for item in value])
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    return value


def _casts_of(arguments: Any) -> FunctionCasts | None:
    """The casts that an AmpTensor among the arguments carries."""
    found: list[FunctionCasts | None] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, AmpTensor):
            found.append(tensor.casts)
        return tensor

    map_tensors(arguments, look)
    return next((casts for casts in found if casts is not None), None)


def casting(function: Callable, rule: str) -> Callable:
    """`function`, casting its arguments by `rule` when it is called in an O1 model or on its half outputs."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        casts = _thread.casts[-1] if _thread.casts else _casts_of((args, kwargs))
        if casts is None:
            return function(*args, **kwargs)
        return casts.call(rule, function, args, kwargs)

    return wrapper
