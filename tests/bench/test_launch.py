import os
import sys
from pathlib import Path

import pytest

from bench.launch import child_environment, command, threads_per_rank
from bench.plan import Job
from bench.registry import VARIANTS_DIR, find

SURROUNDINGS = {
    "PATH": "/bin",
    "PYTHONPATH": "/theirs",
    "RANK": "3",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "ROLE_RANK": "1",
    "MASTER_ADDR": "elsewhere",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
    "PET_NPROC_PER_NODE": "4",
    "OMP_NUM_THREADS": "64",
    "MKL_NUM_THREADS": "64",
    "GLOO_SOCKET_IFNAME": "eth7",
    "CUDA_VISIBLE_DEVICES": "1",
}


def environment(name: str = "ddp", world_size: int = 2, cores: int = 8) -> dict[str, str]:
    return child_environment(SURROUNDINGS, Job(find(name), world_size, "torchrun"), cores, Path("progress"))


def test_what_surrounds_us_says_nothing_about_ranks_and_threads() -> None:
    env = environment()
    gone = [name for name in SURROUNDINGS if name not in env]
    assert set(gone) == set(SURROUNDINGS) - {
        "PATH",
        "PYTHONPATH",
        "OMP_NUM_THREADS",
        "GLOO_SOCKET_IFNAME",
        "CUDA_VISIBLE_DEVICES",
    }
    assert env["OMP_NUM_THREADS"] == "4"


def test_core_can_be_imported_from_anywhere_and_their_path_is_kept() -> None:
    assert environment()["PYTHONPATH"].split(os.pathsep) == [str(VARIANTS_DIR), "/theirs"]


def test_a_variant_that_starts_its_own_ranks_is_told_how_many() -> None:
    assert environment("ddp_spawn", 4)["WORLD_SIZE"] == "4"
    assert "WORLD_SIZE" not in environment("ddp", 4)


def test_windows_is_told_not_to_use_libuv(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "USE_LIBUV" not in environment()
    monkeypatch.setattr(sys, "platform", "win32")
    assert environment()["USE_LIBUV"] == "0"


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(8, 2, 4), (2, 2, 1), (2, 1, 2), (2, 8, 1), (7, 2, 3)]
)
def test_cores_are_shared_evenly(cores: int, ranks: int, threads: int) -> None:
    assert threads_per_rank(cores, ranks) == threads


@pytest.mark.parametrize(
    ("name", "launcher", "expected"),
    [
        ("single", "none", []),
        ("ddp_spawn", "spawn", []),
        ("ddp", "torchrun", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]),
        ("ddp", "launch", ["-m", "torch.distributed.launch", "--standalone", "--nproc-per-node", "2"]),
        ("ddp", "spawn", ["-m", "core.spawn", "2"]),
    ],
)
def test_commands(name: str, launcher: str, expected: list[str]) -> None:
    line = command(Job(find(name), 2, launcher), ["--epochs", "2"])
    assert line == [sys.executable, *expected, str(VARIANTS_DIR / f"{name}.py"), "--epochs", "2"]
