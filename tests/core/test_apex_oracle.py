"""The stand-in against what NVIDIA apex 25.04 did: tests/core/data/README.md has the recipe."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from core.apex_standin import amp

ROOT = Path(__file__).parents[2]
RUNS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/apex_25.04_cpu.jsonl").read_text().splitlines()
]
SHORT_STEPS = 20
"""of a half run in the tests that are not marked slow, past the overflow; a half step takes about 0.3 s"""


@pytest.fixture(autouse=True)
def fresh_amp():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # another number sums in another order, which alone moves a float32 loss by 1%
    amp.reset()
    yield
    amp.reset()
    torch.set_num_threads(threads)


def build(name: str) -> nn.Module:
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
        )
    assert name == "convnet"
    return Net()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.layer2 = nn.Sequential(
            nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.fc = nn.Linear(1568, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layer2(self.layer1(images)).flatten(1))


def batches(seed: int, batch_size: int, steps: int):
    with np.load(ROOT / "variants/core/mnist/mnist.npz") as mnist:
        images, labels = mnist["train_images"], mnist["train_labels"]
    order = torch.randperm(60000, generator=torch.Generator().manual_seed(seed))
    for batch in order[: steps * batch_size].split(batch_size):
        pixels = torch.from_numpy(images[batch.numpy()]).float().view(-1, 1, 28, 28)
        yield (pixels / 255 - 0.1307) / 0.3081, torch.from_numpy(labels[batch.numpy()]).long()


def replay(run: dict, steps: int) -> dict:
    """What the stand-in gives for the first `steps` of an oracle run, in the oracle's fields."""
    torch.manual_seed(run["seed"])
    model = build(run["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=run["momentum"])
    model, optimizer = amp.initialize(
        model,
        optimizer,
        opt_level=run["opt_level"],
        verbosity=0,
        half_dtype=torch.float16,
        **run.get("overrides", {}),
    )
    losses, scales = [], []
    for images, labels in batches(run["seed"], run["batch_size"], steps):
        optimizer.zero_grad()
        output = model(images)
        loss = F.cross_entropy(output.float(), labels)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
        scales.append(amp.state_dict()["loss_scaler0"]["loss_scale"])
    norm = torch.cat([param.detach().double().flatten() for param in model.parameters()]).norm().item()
    return {
        "loss": losses,
        "loss_scale": scales,
        "param_dtypes": {
            name: str(param.dtype).removeprefix("torch.") for name, param in model.named_parameters()
        },
        "output_dtype": str(output.dtype).removeprefix("torch."),
        "param_norm": norm,
        "amp_state": dict(amp.state_dict()),
    }


def name_of(run: dict) -> str:
    overrides = "".join(f"-{key}={value}" for key, value in run.get("overrides", {}).items())
    return f"{run['model']}-{run['opt_level']}{overrides}-lr={run['lr']}-seed={run['seed']}"


def check(run: dict, ours: dict, steps: int) -> None:
    assert ours["param_dtypes"] == run["param_dtypes"]
    assert ours["output_dtype"] == run["output_dtype"]
    assert ours["loss_scale"] == run["loss_scale"][:steps]
    for step, (loss, expected) in enumerate(zip(ours["loss"], run["loss"], strict=False)):
        assert loss == pytest.approx(expected, rel=0.01 if step < 20 else 0.03), f"step {step}"
    if steps == run["steps"]:
        assert ours["param_norm"] == pytest.approx(run["param_norm"], rel=0.002)
        assert ours["amp_state"] == run["amp_state"]


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_the_first_steps_are_those_of_apex(run):
    steps = run["steps"] if run["opt_level"] == "O0" else min(SHORT_STEPS, run["steps"])
    check(run, replay(run, steps), steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run", [run for run in RUNS if run["steps"] > SHORT_STEPS and run["opt_level"] != "O0"], ids=name_of
)
def test_the_whole_run_is_that_of_apex(run):
    check(run, replay(run, run["steps"]), run["steps"])
