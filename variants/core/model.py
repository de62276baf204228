"""The networks all variants train."""

import importlib
import os
import sys

import torch
from torch import nn

from .config import Config, fail


class ConvNet(nn.Module):
    """Two blocks of convolution, batch norm, ReLU and pooling, then one linear layer (29,034 parameters).

    Takes images (N, 1, 28, 28), gives logits (N, 10).
    """

    def __init__(self, norm: str = "batch") -> None:
        super().__init__()
        batch_norm = nn.BatchNorm2d if norm == "batch" else nn.Identity
        self.layer1 = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), batch_norm(16), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.layer2 = nn.Sequential(
            nn.Conv2d(16, 32, 5, padding=2), batch_norm(32), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.fc = nn.Linear(7 * 7 * 32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layer2(self.layer1(images)).flatten(1))


class MLP(nn.Module):
    """784-512-256-10 with ReLU. Takes images (N, 1, 28, 28), gives logits (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def build_model(cfg: Config) -> nn.Module:
    """The network of `--model`, with weights of `--dtype`.

    The weights are drawn in float32 and cast, so that one seed gives the same start in every dtype.
    """
    if cfg.model == "convnet":
        model = ConvNet(cfg.norm)
    elif cfg.model == "mlp":
        model = MLP()
    else:
        model = _load_class(cfg.model)()
    return model.to(getattr(torch, cfg.dtype))


def _load_class(path: str) -> type[nn.Module]:
    """The class at `package.module:Class`, looked for in the current folder as well."""
    module_name, _, class_name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        fail(f"--model {path}: {error}")
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        fail(f"--model {path}: {module_name} has no torch.nn.Module class named {class_name}")
    return found
