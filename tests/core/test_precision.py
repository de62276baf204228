"""The dtype of a computation is read from what autograd recorded, not from what was asked."""

import pytest
import torch
from torch import nn

from core import Config, ConvNet, build_model, pick_amp_dtype
from core.precision import asked_dtype, computed_dtype

CPU = torch.device("cpu")


def loss_of(model: nn.Module, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return nn.functional.cross_entropy(model(torch.randn(4, 1, 28, 28, dtype=dtype)), torch.arange(4))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_plain(dtype):
    assert computed_dtype(loss_of(build_model(Config(dtype=dtype)), getattr(torch, dtype))) == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    with torch.autocast("cpu", dtype):
        loss = loss_of(ConvNet())
    loss.backward()
    assert computed_dtype(loss) == str(dtype).removeprefix("torch.")
    assert loss.dtype == torch.float32


def test_an_autocast_that_torch_disables_shows():
    with pytest.warns(UserWarning), torch.autocast("cpu", torch.float32):
        loss = loss_of(ConvNet())
    assert computed_dtype(loss) == "float32"


def test_a_half_model_and_a_loss_without_graph():
    assert computed_dtype(loss_of(ConvNet().bfloat16(), torch.bfloat16)) == "bfloat16"
    assert computed_dtype(loss_of(ConvNet()).detach()) is None


def test_auto_is_bfloat16_on_a_cpu_and_names_are_taken_at_their_word():
    assert pick_amp_dtype(Config(), CPU) == torch.bfloat16
    assert pick_amp_dtype(Config(amp_dtype="float16"), CPU) == torch.float16


def test_float64_is_refused(capsys):
    with pytest.raises(SystemExit):
        pick_amp_dtype(Config(dtype="float64"), CPU)
    assert "float32" in capsys.readouterr().err


def test_what_was_asked_for_is_remembered(monkeypatch):
    monkeypatch.setattr("core.precision._amp_dtype", None)
    assert asked_dtype(Config(dtype="float64")) == "float64"
    pick_amp_dtype(Config(amp_dtype="float16"), torch.device("cpu"))
    assert asked_dtype(Config()) == "float16"
