"""Networks for `--model tests.networks:Name`, so small that evaluating them takes no time."""

import torch
from torch import nn


class Small(nn.Module):
    """A convolution, then a linear layer: 1,690 parameters in 4 tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(1, 8, 7, stride=7), nn.ReLU())
        self.fc = nn.Linear(8 * 4 * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.block(images).flatten(1))


class Widened(Small):
    """Gives float32 whatever it computed in, so that its output does not show an autocast."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images).float()


class Unused(Small):
    """Has a layer that its output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten = nn.Linear(2, 2)
