"""The learning rate of a run."""

import pytest
import torch

from core import Config, build_scheduler
from tests.ranks import run_variant

TINY = ("--train-images", "256", "--global-batch-size", "32", "--epochs", "2")


def rates(cfg: Config, steps_per_epoch: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=cfg.lr, momentum=cfg.momentum)
    scheduler = build_scheduler(cfg, optimizer, steps_per_epoch)
    found = []
    for _ in range(cfg.epochs * steps_per_epoch):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_constant_is_constant():
    assert rates(Config(lr=0.3, lr_schedule="constant", epochs=2), 5) == [0.3] * 10


def test_onecycle_rises_to_the_flag_and_falls_to_almost_nothing():
    found = rates(Config(lr=0.3, lr_schedule="onecycle", epochs=2), 50)
    assert max(found) == pytest.approx(0.3)
    assert found[0] < 0.3 / 20
    assert found[-1] < 0.3 / 1000


@pytest.mark.parametrize("schedule", ["constant", "onecycle"])
def test_every_world_size_takes_the_same_rates(schedule):
    found = [
        run_variant(name, world_size, *TINY, "--lr-schedule", schedule)["lr"]
        for name, world_size in (("single", 1), ("ddp", 2), ("ddp", 4))
    ]
    assert len(found[0]) == 16
    assert found[0] == found[1] == found[2]
