"""What single parts of the core cost: timed by `make bench`, only run by the other tests."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from core import Config, StepLog, build_model, keep, load_data

CFG = Config()


@pytest.fixture(scope="module")
def train_set():
    return load_data(CFG)[0]


def test_one_step_of_single(benchmark, train_set):
    """Forward, backward and optimizer step on a batch of 128 that is at hand."""
    model = build_model(CFG)
    optimizer = torch.optim.SGD(model.parameters(), lr=CFG.lr, momentum=CFG.momentum)
    images, labels = train_set.__getitems__(range(CFG.global_batch_size))

    def step() -> None:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    benchmark(step)


def test_the_loader_over_an_epoch(benchmark, train_set):
    """468 batches of 128, shuffled, gathered and normalised."""
    loader = DataLoader(
        train_set, CFG.global_batch_size, sampler=RandomSampler(train_set), drop_last=True, collate_fn=keep
    )
    batches = benchmark(lambda: sum(1 for _ in loader))
    assert batches == 468


def test_log_step(benchmark):
    """What `log.step` adds to a step."""
    log = StepLog(CFG, torch.device("cpu"))
    loss = torch.ones((), requires_grad=True) * 2
    log.step(loss)  # the first call also reads the graph
    benchmark(log.step, loss)


def test_reading_the_bundled_mnist(benchmark):
    benchmark.pedantic(load_data, args=(CFG,), rounds=3)
