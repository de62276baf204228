"""The networks, and a user's own."""

import pytest
import torch

from core import MLP, Config, ConvNet, build_model


def test_the_convnet_is_that_of_the_source_articles():
    assert sum(p.numel() for p in ConvNet().parameters()) == 29_034
    assert ConvNet()(torch.randn(3, 1, 28, 28)).shape == (3, 10)
    assert not list(ConvNet("none").buffers())


def test_the_mlp():
    assert [tuple(p.shape) for p in MLP().parameters() if p.dim() == 2] == [(512, 784), (256, 512), (10, 256)]


def test_one_seed_gives_the_same_weights_in_every_dtype():
    models = []
    for dtype in ("float32", "float64"):
        torch.manual_seed(3)
        models.append(build_model(Config(dtype=dtype)))
    for single, double in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert double.dtype == torch.float64
        assert torch.equal(single.double(), double)


def test_a_class_of_the_users_is_found_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\nclass Tiny(nn.Linear):\n    def __init__(self): super().__init__(784, 10)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert type(build_model(Config(model="my_nets:Tiny"))).__name__ == "Tiny"


@pytest.mark.parametrize(
    "model, said",
    [
        ("no_such_module:Net", "no_such_module"),
        ("torch.nn:NoSuchNet", "no torch.nn.Module class named NoSuchNet"),
        ("os.path:join", "no torch.nn.Module class named join"),
    ],
)
def test_a_class_that_is_none_is_said_in_one_line(model, said, capsys):
    with pytest.raises(SystemExit) as stop:
        build_model(Config(model=model))
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
