"""Checkpoints: one form for all variants, written whole or not at all, and nothing in them can run."""

import os
import pickle
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from core import Checkpoint, Config, ConvNet, build_scheduler
from tests.ranks import run_ranks


def parts(cfg: Config, seed: int, scaler: bool = False) -> Checkpoint:
    torch.manual_seed(seed)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    more = {"scaler": torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaler)}
    scheduler = build_scheduler(cfg, optimizer, steps_per_epoch=2)
    return Checkpoint(cfg, model, optimizer=optimizer, scheduler=scheduler, **more)


@pytest.fixture
def cfg(tmp_path):
    return Config(epochs=3, checkpoint_dir=str(tmp_path))


def test_without_a_folder_nothing_happens():
    checkpoint = parts(Config(), 0)
    checkpoint.save(1)
    assert checkpoint.load() == 0


def test_everything_comes_back(cfg):
    saved = parts(cfg, 0, scaler=True)
    saved.model(torch.randn(4, 1, 28, 28)).sum().backward()
    saved.parts["optimizer"].step()
    saved.parts["scheduler"].step()
    saved.save(2)
    drawn = torch.rand(3)
    loaded = parts(cfg, 1, scaler=True)
    assert loaded.load() == 2
    assert torch.equal(torch.rand(3), drawn)
    for name, tensor in saved.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    momentum = loaded.parts["optimizer"].state_dict()["state"][0]["momentum_buffer"]
    assert torch.equal(momentum, saved.parts["optimizer"].state_dict()["state"][0]["momentum_buffer"])
    assert loaded.parts["scheduler"].last_epoch == 1
    assert loaded.parts["scaler"].get_scale() == 1024.0


@pytest.mark.parametrize("saved_with, loaded_with", [(True, False), (False, True)])
def test_a_checkpoint_loads_with_and_without_loss_scaling(cfg, saved_with, loaded_with):
    parts(cfg, 0, scaler=saved_with).save(1)
    assert parts(cfg, 0, scaler=loaded_with).load() == 1


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_wrappers_leave_no_prefix(cfg, wrap):
    checkpoint = Checkpoint(cfg, wrap(ConvNet()))
    checkpoint.save(1)
    stored = torch.load(checkpoint.path, weights_only=True)
    assert stored["model"].keys() == ConvNet().state_dict().keys()
    assert sum(p.numel() for p in ConvNet().parameters()) == 29_034


def check_ddp(folder: str) -> None:
    dist.init_process_group("gloo")
    cfg = Config(epochs=3, checkpoint_dir=folder)
    torch.manual_seed(dist.get_rank())
    checkpoint = Checkpoint(cfg, DDP(ConvNet()))
    with mock.patch.object(torch, "save", wraps=torch.save) as save:
        checkpoint.save(1)
    to_files = [call for call in save.call_args_list if hasattr(call.args[1], "name")]
    assert len(to_files) == (1 if dist.get_rank() == 0 else 0)
    drawn = torch.rand(1)
    assert checkpoint.load() == 1
    assert torch.equal(torch.rand(1), drawn)  # each rank goes on with random numbers of its own


def test_only_rank_0_writes_and_a_bare_model_loads_it(tmp_path):
    run_ranks(check_ddp, 2, str(tmp_path))
    stored = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    ConvNet().load_state_dict(stored["model"])
    assert not torch.equal(*(state["cpu"] for state in stored["random_states"]))


def test_a_kill_inside_the_write_leaves_the_old_checkpoint(cfg, monkeypatch):
    checkpoint = parts(cfg, 0)
    checkpoint.save(1)
    before = checkpoint.path.read_bytes()

    def half(state, file):
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(2)
    assert checkpoint.path.read_bytes() == before
    assert os.listdir(checkpoint.path.parent) == ["checkpoint.pt"]


def refused(cfg: Config, capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        parts(cfg, 0).load()
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    return err


class Planted:
    def __reduce__(self):
        return os.mkdir, ("planted",)


@pytest.mark.parametrize(
    "content", [b"", b"no zip", pickle.dumps(Planted(), 2), pickle.dumps({"format": 1}, 2)]
)
def test_a_foreign_or_damaged_file_is_said_and_never_run(cfg, capsys, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(content)
    assert "damaged" in refused(cfg, capsys)
    assert not (tmp_path / "planted").exists()


def test_a_planted_pickle_inside_a_torch_file_is_never_run(cfg, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": 1, "model": Planted()}, tmp_path / "checkpoint.pt")
    assert "damaged" in refused(cfg, capsys)
    assert not (tmp_path / "planted").exists()


def test_half_a_file_is_said(cfg, capsys):
    checkpoint = parts(cfg, 0)
    checkpoint.save(1)
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:-100])
    assert "damaged" in refused(cfg, capsys)


@pytest.mark.parametrize(
    "change, flag", [({"lr": 0.5}, "--lr"), ({"seed": 9}, "--seed"), ({"epochs": 4}, "--epochs")]
)
def test_resuming_another_training_is_refused(cfg, capsys, change, flag):
    parts(cfg, 0).save(1)
    assert flag in refused(replace(cfg, **change), capsys)


def test_more_epochs_at_a_constant_rate_go_on_and_a_finished_run_is_said(cfg, capsys):
    cfg = replace(cfg, lr_schedule="constant")
    parts(cfg, 0).save(3)
    assert "has all 3" in refused(cfg, capsys)
    assert parts(replace(cfg, epochs=4), 0).load() == 3
