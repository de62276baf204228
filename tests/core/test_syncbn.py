"""Synchronised batch norm on CPUs against one process that sees the whole batch."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from core import convert_sync_batchnorm
from core.syncbn import AllReduceBatchNorm
from tests.ranks import run_ranks

SHAPES = [(8, 3, 5, 5), (8, 3)]


def norm_for(shape: tuple[int, ...], **settings) -> nn.Module:
    torch.manual_seed(0)
    norm = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(shape[1], **settings).double()
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


def train_and_eval(norm: nn.Module, images: torch.Tensor, factors: torch.Tensor) -> list[torch.Tensor]:
    """Outputs and gradients of two training steps and one evaluation."""
    found = []
    for scale in (1.0, 3.0):
        given = (images * scale + 1).requires_grad_()
        output = norm.train()(given)
        (output * factors).sum().backward()
        found += [output.detach(), given.grad]
    if norm.track_running_stats:  # without them evaluation normalises with what it is given, here as in torch
        found.append(norm.eval()(images).detach())
    return found


def check(shape: tuple[int, ...], settings: dict) -> None:
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(1)
    images, factors = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    whole = norm_for(shape, **settings)
    ours = convert_sync_batchnorm(nn.Sequential(norm_for(shape, **settings)))[0]
    assert type(ours) is AllReduceBatchNorm
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    expected = train_and_eval(whole, images, factors)
    for got, want in zip(train_and_eval(ours, images[mine], factors[mine]), expected, strict=True):
        torch.testing.assert_close(got, want[mine], rtol=0, atol=1e-11)
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(dict(ours.named_buffers())[name], buffer, rtol=0, atol=1e-12)
    for parameter, want in zip(ours.parameters(), whole.parameters(), strict=True):
        dist.all_reduce(parameter.grad)
        torch.testing.assert_close(parameter.grad, want.grad, rtol=0, atol=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "settings", [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"momentum": 0.3}]
)
def test_equals_batch_norm_of_the_whole_batch(shape, settings):
    run_ranks(check, 2, shape, settings)


def test_conversion_keeps_parameters_and_statistics_and_reaches_nested_layers():
    norm = nn.BatchNorm2d(3)
    norm(torch.randn(4, 3, 2, 2))
    model = convert_sync_batchnorm(nn.Sequential(nn.Sequential(norm), nn.ReLU()))
    assert model[0][0].weight is norm.weight
    assert model[0][0].num_batches_tracked == 1
    assert list(model.state_dict()) == list(
        nn.Sequential(nn.Sequential(nn.BatchNorm2d(3)), nn.ReLU()).state_dict()
    )


def test_a_batch_of_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"takes \(N, C, ...\)"):
        AllReduceBatchNorm(3)(torch.randn(3))
