"""Synchronised batch norm on GPUs and on CPUs.

`nn.SyncBatchNorm` has no CPU kernels and DDP refuses a CPU model that contains it, so on CPUs a stand-in of
ours computes the same thing over a differentiable all-reduce.
"""

import torch
import torch.distributed as dist
from torch import nn


def convert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """`model` with every batch norm normalising over the images of all ranks; its state is kept.

    Call it after `.to(device)` and before DDP. On GPUs this is `nn.SyncBatchNorm.convert_sync_batchnorm`.
    """
    if any(parameter.is_cuda for parameter in model.parameters()):
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, child in model.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(model, name, AllReduceBatchNorm.replacing(child))
        else:
            convert_sync_batchnorm(child)
    return model


class AllReduceBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm whose mean and variance are those of the global batch. Takes (N, C, ...) on any device."""

    @classmethod
    def replacing(cls, norm: nn.modules.batchnorm._BatchNorm) -> "AllReduceBatchNorm":
        """One with the parameters, buffers and settings of `norm`."""
        new = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        new.__dict__.update(norm.__dict__)
        return new

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"takes (N, C, ...), got {tuple(input.shape)}")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.training or not dist.is_initialized():
            return super().forward(images)
        wide = (
            images if images.dtype == torch.float64 else images.float()
        )  # statistics never in half precision
        axes = [axis for axis in range(images.dim()) if axis != 1]
        count = torch.full((1,), images.numel() / images.shape[1], dtype=wide.dtype, device=images.device)
        sums = _AllReduce.apply(torch.cat([wide.sum(axes), count]))
        mean, total = sums[:-1] / sums[-1], sums[-1].detach()
        # A second all-reduce for the variance: E[x^2] - E[x]^2 in one would cancel digits away.
        shape = [1, -1] + [1] * (images.dim() - 2)
        centred = wide - mean.view(shape)
        variance = _AllReduce.apply(centred.square().sum(axes)) / total
        self._update_running_statistics(mean.detach(), variance.detach(), total)
        normalised = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return normalised.to(images.dtype)

    def _update_running_statistics(
        self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor
    ) -> None:
        if not self.track_running_stats:
            return
        self.num_batches_tracked += 1
        rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate)


class _AllReduce(torch.autograd.Function):
    """The sum over ranks. Its gradient is the sum of the ranks' gradients, as each rank uses the sum."""

    @staticmethod
    def forward(ctx, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total
