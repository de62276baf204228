"""Threads and backends: one policy, however the ranks were started."""

import os

import pytest
import torch

from core import device as device_module
from core.device import backend_for, pick_device, usable_cores


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("ranks, expected", [(None, 8), (2, 4), (3, 2), (16, 1)])
def test_cores_are_shared_out_over_the_ranks(monkeypatch, threads, ranks, expected):
    monkeypatch.setattr(device_module, "usable_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # what torchrun sets
    if ranks:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    else:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert pick_device() == torch.device("cpu")
    assert torch.get_num_threads() == expected


@pytest.mark.parametrize("quota, expected", [(None, 4), (2.5, 2), (0.5, 1), (64.0, 4)])
def test_the_quota_of_a_container_counts(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(4), raising=False)
    monkeypatch.setattr(device_module, "_cgroup_quota", lambda: quota)
    assert usable_cores() == expected


def test_cpus_talk_over_gloo():
    assert backend_for(torch.device("cpu")) == "gloo"


@pytest.mark.parametrize("gpus, ranks, expected", [(1, 1, "nccl"), (4, 4, "nccl"), (1, 2, "gloo")])
def test_ranks_that_share_a_gpu_talk_over_gloo_as_nccl_refuses(monkeypatch, gpus, ranks, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert backend_for(torch.device("cuda", 0)) == expected


@pytest.mark.parametrize("local_rank, expected", [(0, 0), (1, 1), (2, 0)])
def test_each_rank_takes_its_gpu_and_makes_it_current(monkeypatch, local_rank, expected):
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert pick_device(local_rank) == torch.device("cuda", expected)
    assert current == [torch.device("cuda", expected)]
