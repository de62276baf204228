"""Batch norm over the batch of all processes."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from .errors import ApexError


class SyncBatchNorm(_BatchNorm):
    """Batch norm whose mean and variance are those of the batch of all processes of `process_group`.

    Takes (N, C, ...), or (N, ..., C) with `channel_last`; N may differ between processes. Half input goes
    with float32 weights: statistics are computed in the wider of the two, the output has the input's dtype.
    With `fuse_relu`, a ReLU follows; `forward(input, z)` adds z before it. In evaluation, and where no
    process group is initialized, it is a plain batch norm. Works on CPUs (gloo) and GPUs.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_group = process_group
        self.channel_last = channel_last
        self.fuse_relu = fuse_relu

    def forward(self, input: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        images = input.movedim(-1, 1) if self.channel_last else input
        if images.dim() < 2 or images.size(1) != self.num_features:
            raise ApexError(
                f"SyncBatchNorm of {self.num_features} features got an input of shape {tuple(input.shape)}"
                f"{' (channel_last)' if self.channel_last else ''}"
            )
        if self.training or self.running_mean is None:
            output = self._normalize(images)
        else:
            output = F.batch_norm(
                images, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        if self.channel_last:
            output = output.movedim(1, -1)
        if z is not None:
            output = output + z
        return torch.relu(output) if self.fuse_relu else output

    def _normalize(self, images: torch.Tensor) -> torch.Tensor:
        dtype = torch.promote_types(images.dtype, torch.float32 if self.weight is None else self.weight.dtype)
        values = images.to(torch.promote_types(dtype, torch.float32))
        others = [dim for dim in range(values.dim()) if dim != 1]
        shape = [1, -1] + [1] * (values.dim() - 2)

        # Two all-reduces, not one of the squares: E[x^2] - E[x]^2 would lose half of the digits.
        count = values.new_full((1,), values.numel() // self.num_features)
        total, count = _sum_over_ranks(torch.cat([values.sum(others), count]), self.process_group).split(
            [self.num_features, 1]
        )
        count = count.detach()
        mean = total / count
        centred = values - mean.view(shape)
        var = _sum_over_ranks(centred.square().sum(others), self.process_group) / count
        if self.training and self.running_mean is not None:
            self._track(mean.detach(), (var * count / (count - 1).clamp(min=1)).detach())

        output = centred * (var + self.eps).rsqrt().view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(images.dtype)

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, unbiased_var: torch.Tensor) -> None:
        self.num_batches_tracked += 1
        factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased_var.to(self.running_var.dtype), factor)


class _SumOverRanks(torch.autograd.Function):
    """A sum that every rank uses: the gradient of each summand is the sum of the gradients of the sums."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def _sum_over_ranks(values: torch.Tensor, group: Any) -> torch.Tensor:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return values
    return _SumOverRanks.apply(values, group)


def convert_batchnorms(
    module: nn.Module, process_group: Any, channel_last: bool, done: dict[nn.Module, nn.Module]
) -> nn.Module:
    """`module` with every batch norm in it replaced; `done` keeps one that occurs twice one and the same."""
    if module in done:
        return done[module]
    if isinstance(module, _BatchNorm) and not isinstance(module, _InstanceNorm):
        done[module] = _converted(module, process_group, channel_last)
        return done[module]
    done[module] = module
    for name, child in module._modules.items():  # named_children() leaves out a module's second occurrence
        if child is not None:
            module._modules[name] = convert_batchnorms(child, process_group, channel_last, done)
    return module


def _converted(norm: _BatchNorm, process_group: Any, channel_last: bool) -> SyncBatchNorm:
    sync = SyncBatchNorm(
        norm.num_features,
        norm.eps,
        norm.momentum,
        norm.affine,
        norm.track_running_stats,
        process_group,
        channel_last,
    )
    # The very same tensors: an optimizer made before the conversion goes on updating the right ones.
    sync.weight, sync.bias = norm.weight, norm.bias
    sync.running_mean, sync.running_var = norm.running_mean, norm.running_var
    sync.num_batches_tracked = norm.num_batches_tracked
    return sync.train(norm.training)
