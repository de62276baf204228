"""The learning rate over a run."""

import torch

from .config import Config


def build_scheduler(
    cfg: Config, optimizer: torch.optim.Optimizer, steps_per_epoch: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """The scheduler of `--lr-schedule`, to be stepped once after every optimizer step.

    `steps_per_epoch` counts optimizer steps, which are the same for every world size as the global batch is.
    """
    if cfg.lr_schedule == "onecycle":
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=cfg.lr,
            total_steps=cfg.epochs * steps_per_epoch,
            cycle_momentum=False,
        )
    return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
