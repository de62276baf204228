"""Accuracy is counted on every image once, whatever the world size: 3 and 7 do not divide 10,000."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from core import Accuracy, ConvNet, ImageSet, evaluate
from tests.ranks import run_ranks


def some_images(count: int) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.randint(0, 10, (count,), generator=generator), torch.float32)


def network() -> nn.Module:
    torch.manual_seed(0)
    return ConvNet()


def check_counts(count: int, expected: Accuracy) -> None:
    dist.init_process_group("gloo")
    assert evaluate(DDP(network()), some_images(count), torch.device("cpu")) == expected


@pytest.mark.parametrize("world_size", [2, 3, 7])
@pytest.mark.parametrize("count", [2001, 5])
def test_counts_equal_those_of_one_process(world_size, count):
    expected = evaluate(network(), some_images(count), torch.device("cpu"))
    assert expected.total == count
    run_ranks(check_counts, world_size, count, expected)


def check_rank_0_statistics() -> None:
    dist.init_process_group("gloo")
    model = network()
    model.layer1[1].running_mean.fill_(dist.get_rank())
    evaluate(model, some_images(20), torch.device("cpu"))
    assert model.layer1[1].running_mean.eq(0).all()


def test_the_model_evaluated_is_that_of_rank_0():
    run_ranks(check_rank_0_statistics, 2)


def test_the_mode_of_the_model_is_kept_and_dropout_is_off():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(784, 10))
    images = some_images(300)
    assert evaluate(model, images, torch.device("cpu")) == evaluate(model, images, torch.device("cpu"))
    assert model.training
