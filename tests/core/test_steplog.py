"""The record: what is in it, that it is strict JSON, and what the clock leaves out."""

import json
import time

import pytest
import torch
from torch import nn

from core import Checkpoint, Config, ConvNet, StepLog
from core.steplog import weights_sha256, write_json

CPU = torch.device("cpu")


def train(cfg: Config, steps: int = 3, sleep_s: float = 0.0, **parts) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    log = StepLog(cfg, CPU, Checkpoint(cfg, model, optimizer=optimizer, **parts), steps)
    for _ in range(cfg.epochs):
        for _ in range(steps):
            loss = model(torch.ones(1, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.step(loss)
        time.sleep(sleep_s)  # stands for an evaluation
        log.epoch(0.5)


@pytest.fixture
def record(tmp_path):
    return tmp_path / "folder" / "record.json"


def test_a_record_holds_every_step_of_every_epoch(record):
    train(Config(epochs=2, record=str(record)))
    raw = json.loads(record.read_text())
    assert raw["steps"] == 6
    assert len(raw["ranks"]) == raw["world_size"] == 1
    assert len(raw["ranks"][0]["step_ms"]) == len(raw["ranks"][0]["loss"]) == len(raw["lr"]) == 6
    assert [epoch["steps"] for epoch in raw["epochs"]] == [3, 3]
    assert raw["skipped_steps"] == 0
    assert raw["precision"]["compute"] == "float32"
    assert raw["ranks"][0]["threads"] == torch.get_num_threads()
    assert "record" not in raw["config"] and raw["config"]["epochs"] == 2
    assert str(record.parent) not in record.read_text()


def test_evaluation_is_off_the_clock(record):
    train(Config(epochs=2, record=str(record)), sleep_s=0.2)
    raw = json.loads(record.read_text())
    assert sum(raw["ranks"][0]["step_ms"][1:]) < 100  # the first step takes torch's own start-up


def test_losses_are_kept_to_the_last_bit(record):
    torch.manual_seed(0)
    train(Config(record=str(record)), steps=1)
    torch.manual_seed(0)
    expected = nn.Linear(4, 2)(torch.ones(1, 4)).square().mean().item()
    assert json.loads(record.read_text())["ranks"][0]["loss"] == [expected]


def test_a_loss_that_is_not_finite_is_null_and_the_json_strict(tmp_path):
    def no_constant(name):
        raise AssertionError(name)

    path = tmp_path / "x.json"
    write_json({"a": [float("nan"), {"b": float("inf")}, 1.5]}, path)
    assert json.loads(path.read_text(), parse_constant=no_constant) == {"a": [None, {"b": None}, 1.5]}


def test_a_step_that_the_scaler_skips_is_counted(record):
    cfg = Config(record=str(record))
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    log = StepLog(cfg, CPU, Checkpoint(cfg, model, optimizer=optimizer, scaler=scaler), 2)
    before = weights_sha256(model)
    for _ in range(2):
        loss = model(torch.full((1, 4), 100.0)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        log.step(loss)
    log.epoch(0.5)
    raw = json.loads(record.read_text())
    assert weights_sha256(model) == before
    assert raw["skipped_steps"] == 2
    assert raw["precision"]["scaler"] is True
    assert raw["precision"]["final_scale"] == 2.0**125


def test_step_never_reads_the_loss():
    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            assert function not in (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__float__)
            return super().__torch_function__(function, types, args, kwargs or {})

    log = StepLog(Config(), CPU)
    for _ in range(3):
        log.step(torch.ones((), requires_grad=True).as_subclass(Watched) * 2)


def test_progress_reaches_the_harness_by_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_PROGRESS", str(tmp_path / "progress"))
    train(Config())
    assert (tmp_path / "progress").read_text() == "1 3"


def test_the_weights_digest_sees_the_last_bit():
    model = ConvNet()
    before = weights_sha256(model)
    assert weights_sha256(nn.DataParallel(model)) == before
    model.fc.bias.data[0] = torch.nextafter(model.fc.bias.data[0], torch.tensor(9.0))
    assert weights_sha256(model) != before


def test_a_variant_needs_no_checkpoint_to_be_logged(record):
    log = StepLog(Config(record=str(record)), CPU)
    log.step(torch.ones(()))
    log.epoch(0.25)
    raw = json.loads(record.read_text())
    assert raw["epochs"][0]["test_accuracy"] == 0.25
    assert raw["parameters"] is None


def test_tensorboard_scalars_are_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(Config(epochs=2, tensorboard=str(tmp_path)))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("test/accuracy")] == [1, 2]
