"""What `amp.initialize` does to an optimizer: float32 masters, unscaled gradients, skipped steps."""

import types
from typing import Any

import torch
from torch.optim import Optimizer

from .errors import ApexError
from .model import HALF_TYPES
from .scaler import LossScaler


class AmpOptimizer:
    """The amp side of one optimizer; `optimizer.amp` holds it.

    With masters, the optimizer's groups hold float32 copies in place of the half weights, from the start.
    `pairs` are the (half weight, master) pairs, `plain` the parameters that are their own masters.
    """

    def __init__(self, optimizer: Optimizer, master_weights: bool) -> None:
        self.optimizer = optimizer
        self.master_weights = master_weights
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.plain: list[torch.Tensor] = []
        self.kept: list[torch.Tensor | None] = []
        """gradients of `plain` from earlier backward passes, set aside during this one"""
        self.started = False
        self.gradients_scaled = False
        """a backward pass under delay_unscale has left its gradients scaled"""
        self.skip_step = False
        for group in optimizer.param_groups:
            group["params"] = self.take(group["params"])
        if optimizer.state:
            optimizer.load_state_dict(
                optimizer.state_dict()
            )  # brings the state to the dtype of its parameter

    def take(self, params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Take these parameters on; returns what the optimizer shall update in their place."""
        updated = []
        for param in params:
            if not (self.master_weights and param.requires_grad and param.dtype in HALF_TYPES):
                self.plain.append(param)
                updated.append(param)
                continue
            master = param.detach().clone().float().requires_grad_()
            param.amp_master = master  # for checkpoints and broadcasts, see model.py and parallel.py
            self.pairs.append((param, master))
            updated.append(master)
            if param in self.optimizer.state:
                self.optimizer.state[master] = self.optimizer.state.pop(param)
        return updated

    def start(self) -> None:
        """Before the first use: follow weights that were changed since (loaded, or broadcast by DDP).

        A master that rounds to its weight keeps the bits that the weight cannot hold.
        """
        if self.started:
            return
        self.started = True
        for param, master in self.pairs:
            if not torch.equal(master.detach().to(param.dtype), param.detach()):
                master.data.copy_(param.detach())

    def before_backward(self) -> None:
        """Set aside what earlier backward passes left, so that only new gradients get unscaled."""
        self.start()
        self.kept = []
        if self.gradients_scaled:
            return
        for param, _ in self.pairs:
            param.grad = None  # its gradient went into the master's
        self.kept = [param.grad for param in self.plain]
        for param in self.plain:
            param.grad = None

    def after_backward(self, scaler: LossScaler) -> bool:
        """Unscale the new gradients onto the earlier ones; returns whether one of the new was not finite.

        Then nothing is unscaled and the next step is skipped.
        """
        self.gradients_scaled = False
        kept, self.kept = self.kept or [None] * len(self.plain), []
        new = [
            param.grad
            for param in [*(param for param, _ in self.pairs), *self.plain]
            if param.grad is not None
        ]
        overflow = scaler.overflowed(new)
        if overflow:
            return True
        for param, master in self.pairs:
            if param.grad is not None:
                unscaled = param.grad.to(master.dtype, copy=True).mul_(1 / scaler.scale)
                master.grad = unscaled if master.grad is None else master.grad.add_(unscaled)
        for param, earlier in zip(self.plain, kept, strict=True):
            if param.grad is None:
                param.grad = earlier
            else:
                param.grad.mul_(1 / scaler.scale)
                if earlier is not None:
                    param.grad.add_(earlier)
        return False

    def clear_gradients(self) -> None:
        """Drop every gradient, of half weights and masters too."""
        self.gradients_scaled = False
        for param in [*(tensor for pair in self.pairs for tensor in pair), *self.plain]:
            param.grad = None

    def masters_to_weights(self) -> None:
        """Round the updated masters into the half weights, and drop the masters' gradients."""
        for param, master in self.pairs:
            param.data.copy_(master.detach())
            master.grad = None


def prepare_optimizer(optimizer: Optimizer, master_weights: bool) -> None:
    """Give `optimizer` its amp side, and its methods what amp adds to them."""
    if not isinstance(optimizer, Optimizer):
        raise ApexError(
            f"amp.initialize takes an optimizer or a list of optimizers, got {type(optimizer).__name__}"
        )
    if hasattr(optimizer, "amp"):
        raise ApexError(
            "this optimizer has been through amp.initialize already; make a new one for a new run"
        )
    optimizer.amp = AmpOptimizer(optimizer, master_weights)
    _wrap_step(optimizer)
    _wrap_zero_grad(optimizer)
    _wrap_add_param_group(optimizer)


def _wrap_step(optimizer: Optimizer) -> None:
    inner = optimizer.step

    def step(self: Optimizer, closure: Any = None) -> None:
        if closure is not None:
            raise ApexError(
                "optimizer.step(closure) does not work with amp: it would run backward without scale_loss"
            )
        if self.amp.gradients_scaled:
            raise ApexError(
                "optimizer.step() on gradients that are still scaled: the last scale_loss before it must not "
                "have delay_unscale=True"
            )
        if self.amp.skip_step:
            self.amp.skip_step = False
            self.amp.clear_gradients()
            self._opt_called = True  # else a scheduler warns that it was stepped before the optimizer
            return
        self.amp.start()
        inner()
        self.amp.masters_to_weights()

    if hasattr(inner, "_wrapped_by_lr_sched"):  # a scheduler made before amp.initialize looks for its mark
        step._wrapped_by_lr_sched = True
    # A bound method, as a scheduler made after amp.initialize unwraps it.
    optimizer.step = types.MethodType(step, optimizer)


def _wrap_zero_grad(optimizer: Optimizer) -> None:
    inner = optimizer.zero_grad

    def zero_grad(self: Optimizer, set_to_none: bool = True) -> None:
        self.amp.start()
        self.amp.gradients_scaled = False
        inner(set_to_none)
        for param, master in self.amp.pairs:
            param.grad = None
            master.grad = None

    optimizer.zero_grad = types.MethodType(zero_grad, optimizer)


def _wrap_add_param_group(optimizer: Optimizer) -> None:
    inner = optimizer.add_param_group

    def add_param_group(self: Optimizer, group: dict[str, Any]) -> None:
        params = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        named = bool(params) and isinstance(params[0], tuple)
        taken = self.amp.take([param for _, param in params] if named else params)
        if named:
            taken = [(name, param) for (name, _), param in zip(params, taken, strict=True)]
        inner({**group, "params": taken})

    optimizer.add_param_group = types.MethodType(add_param_group, optimizer)
