"""The interface of apex 25.04's `parallel`, on native torch.distributed: DDP, SyncBatchNorm, Reducer.

The order that works: build the model, `convert_syncbn_model`, move it to its device, make the optimizer,
`amp.initialize`, and `DistributedDataParallel` last. amp must see the model itself to cast it, and the
batch norms must be final before amp decides which weights stay float32.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .errors import ApexError
from .syncbn import SyncBatchNorm, convert_batchnorms

__all__ = [
    "DistributedDataParallel",
    "Reducer",
    "SyncBatchNorm",
    "convert_syncbn_model",
    "create_syncbn_process_group",
]


class DistributedDataParallel(nn.Module):
    """Averages the gradients of `module` over all processes, during backward.

    Parameters are broadcast from rank 0 on construction; buffers (running statistics) never are, as in apex:
    each rank keeps its own. Gradients go in buckets of at least `message_size` elements, each as soon as all
    of its gradients are there; with `delay_allreduce` all go at the end of backward. With
    `allreduce_trigger_params`, a bucket ends at each of these parameters instead.

    `gradient_average=False` leaves the sum. `gradient_predivide_factor` divides before the sum and
    multiplies the rest back after, to spare the range of half gradients. `allreduce_always_fp32` sums half
    gradients in float32. `retain_allreduce_buffers`, `num_allreduce_streams`, `allreduce_communicators`,
    `gradient_average_split_factor` and `prof` are taken so that old calls run; they change nothing here.

    `state_dict()` has the prefix "module.". A parameter that no rank used keeps no gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        message_size: int = 10_000_000,
        delay_allreduce: bool = False,
        shared_param: None = None,
        allreduce_trigger_params: list[torch.Tensor] | None = None,
        retain_allreduce_buffers: bool = False,
        allreduce_always_fp32: bool = False,
        num_allreduce_streams: int = 1,
        allreduce_communicators: Any = None,
        gradient_average: bool = True,
        gradient_predivide_factor: float = 1.0,
        gradient_average_split_factor: float | None = None,
        prof: bool = False,
    ) -> None:
        super().__init__()
        _check_process_group("parallel.DistributedDataParallel")
        if shared_param is not None:
            raise ApexError(
                "shared_param is gone from apex's DistributedDataParallel; use delay_allreduce=True"
            )
        if delay_allreduce and allreduce_trigger_params is not None:
            raise ApexError("allreduce_trigger_params does not go with delay_allreduce=True")
        self.module = module
        self.gradient_average = gradient_average
        self.gradient_predivide_factor = gradient_predivide_factor
        self.allreduce_always_fp32 = allreduce_always_fp32
        self.delay_allreduce = delay_allreduce
        self._enabled = True

        params = list(module.parameters())
        # amp's float32 masters too: where ranks loaded different weights, the masters would stay apart.
        masters = [param.amp_master for param in params if hasattr(param, "amp_master")]
        for tensors in _by_type(params + masters):
            _flat(tensors, lambda flat: dist.broadcast(flat, 0))

        trained = [param for param in params if param.requires_grad]
        triggers = (
            None if allreduce_trigger_params is None else {id(param) for param in allreduce_trigger_params}
        )
        self._buckets = _make_buckets(trained, message_size, triggers)
        self._bucket_of = {param: index for index, bucket in enumerate(self._buckets) for param in bucket}
        for param in trained:
            param.register_post_accumulate_grad_hook(self._on_gradient)
        self._begin()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._begin()  # a backward pass that failed half-way leaves its state behind
        return self.module(*args, **kwargs)

    def disable_allreduce(self) -> None:
        """Keep gradients local from here on, as for all but the last of several micro-batches."""
        self._enabled = False

    def enable_allreduce(self) -> None:
        """Average gradients again."""
        self._enabled = True

    def _begin(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._running: list[tuple[dist.Work, torch.Tensor]] = []
        self._backward_seen = False

    def _on_gradient(self, param: torch.Tensor) -> None:
        if not self._enabled:
            return
        if not self._backward_seen:
            self._backward_seen = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        if self.delay_allreduce:
            return
        index = self._bucket_of[param]
        if index < len(self._running):
            raise ApexError(
                "a parameter got a second gradient in one backward pass after its first was sent off; "
                "use DistributedDataParallel(..., delay_allreduce=True)"
            )
        self._missing[index] -= 1
        # In the order of the buckets, which is the same on all ranks; the order of gradients need not be.
        while len(self._running) < len(self._buckets) and self._missing[len(self._running)] <= 0:
            self._launch()

    def _launch(self) -> None:
        """Start the all-reduce of the next bucket: its gradients, then for each whether this rank has it."""
        bucket = self._buckets[len(self._running)]
        flat = torch.cat([_gradient_or_zeros(param).flatten() for param in bucket])
        if self.allreduce_always_fp32:
            flat = flat.float()
        flat /= self.gradient_predivide_factor
        present = [float(param.grad is not None) for param in bucket]
        # A tensor made of a list would be copied from the host, for which a GPU has to wait.
        flags = flat.new_ones(len(bucket)) if all(present) else flat.new_tensor(present)
        flat = torch.cat([flat, flags])
        self._running.append((dist.all_reduce(flat, async_op=True), flat))

    def _finish(self) -> None:
        """At the end of backward: send what is left, wait, and put the averages into the gradients."""
        while len(self._running) < len(self._buckets):
            self._launch()
        for bucket, (work, flat) in zip(self._buckets, self._running, strict=True):
            work.wait()  # sync point: on a GPU the stream waits, not the process
            *averages, present = flat.split([*(param.numel() for param in bucket), len(bucket)])
            factor = self.gradient_predivide_factor / dist.get_world_size() if self.gradient_average else 1.0
            # Reading `present` makes the process wait for a GPU, so only where this rank lacks a gradient.
            lacking = any(param.grad is None for param in bucket)
            used = present.tolist() if lacking else [1.0] * len(bucket)
            for param, average, used_somewhere in zip(bucket, averages, used, strict=True):
                if used_somewhere:
                    param.grad = _gradient_or_zeros(param)
                    param.grad.copy_((average * factor).view_as(param))
        self._begin()


class Reducer:
    """Averages gradients over all processes when `reduce()` is called.

    Takes a module, whose parameters it broadcasts from rank 0, or an iterable of gradients.
    """

    def __init__(self, module_or_grads_list: nn.Module | Iterable[torch.Tensor]) -> None:
        _check_process_group("parallel.Reducer")
        self.module = module_or_grads_list if isinstance(module_or_grads_list, nn.Module) else None
        if self.module is None:
            self.grads = list(module_or_grads_list)
            return
        for params in _by_type(list(self.module.parameters())):
            _flat(params, lambda flat: dist.broadcast(flat, 0))

    def reduce(self) -> None:
        """Replace each gradient by its average over the processes."""
        grads = self.grads if self.module is None else [param.grad for param in self.module.parameters()]
        for tensors in _by_type([grad for grad in grads if grad is not None]):
            _flat(tensors, _average)


def convert_syncbn_model(
    module: nn.Module, process_group: Any = None, channel_last: bool = False
) -> nn.Module:
    """`module` with each batch norm replaced by a SyncBatchNorm that holds the same weights and statistics.

    Comes before `amp.initialize` and before any parallel wrapper; raises ApexError on a wrapped module.
    """
    if isinstance(module, DistributedDataParallel | nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise ApexError(
            f"convert_syncbn_model was given a model inside {type(module).__name__}; convert the model "
            "first, then amp.initialize, then wrap"
        )
    return convert_batchnorms(module, process_group, channel_last, {})


def create_syncbn_process_group(group_size: int) -> Any:
    """The group of `group_size` neighbouring ranks that this rank is in; None, for all ranks, when it is 0.

    Every rank must call it.
    """
    _check_process_group("create_syncbn_process_group")
    world_size = dist.get_world_size()
    if group_size == 0:
        return None
    if group_size < 0 or world_size % group_size:
        raise ApexError(f"a group of {group_size} does not divide {world_size} ranks")
    groups = [
        dist.new_group(list(range(start, start + group_size))) for start in range(0, world_size, group_size)
    ]
    return groups[dist.get_rank() // group_size]


def _check_process_group(caller: str) -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise ApexError(f"{caller} comes after torch.distributed.init_process_group")


def _make_buckets(
    params: list[torch.Tensor], message_size: int, triggers: set[int] | None
) -> list[list[torch.Tensor]]:
    """Buckets of one dtype and device each, in about the order in which backward fills them."""
    full: list[list[torch.Tensor]] = []
    filling: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for param in reversed(params):
        key = (param.dtype, param.device)
        bucket = filling.setdefault(key, [])
        bucket.append(param)
        ends = sum(p.numel() for p in bucket) >= message_size if triggers is None else id(param) in triggers
        if ends:
            full.append(filling.pop(key))
    return full + list(filling.values())


def _gradient_or_zeros(param: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(param) if param.grad is None else param.grad


def _by_type(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


@torch.no_grad()
def _flat(tensors: list[torch.Tensor], collective: Callable[[torch.Tensor], Any]) -> None:
    """Run `collective` once, over all `tensors` (of one dtype and device) laid end to end."""
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    collective(flat)
    for tensor, result in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(result.view_as(tensor))


def _average(flat: torch.Tensor) -> None:
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
