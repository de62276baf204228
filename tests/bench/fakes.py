"""Stand-ins for what takes long: a machine that needs no probe, records and scripts that need no torch."""

import json
import sys
from pathlib import Path
from typing import Any

from bench.plan import Job
from bench.registry import Variant

ENVIRONMENT = {
    "python": "3.12.0",
    "packages": {"torch": "2.9.0"},
    "architecture": "x86_64",
    "cpu": "AMD EPYC",
    "usable_cores": 2,
    "gpus": [],
    "host": "0123abcd",
}


def raw_record(world_size: int = 2, steps: int = 4, **changes: Any) -> dict[str, Any]:
    """A record as StepLog writes it for a healthy run on the CPU. `rank_changes={1: {...}}` is for one rank."""
    rank_changes = changes.pop("rank_changes", {})
    ranks = [
        {
            "rank": rank,
            "host": "0123abcd",
            "device": "cpu",
            "threads": max(1, 2 // world_size),
            "omp_num_threads": "1",
            "compute_dtype": "float32",
            "step_ms": [10.0] * steps,
            "loss": [2.0 / (step + 1) for step in range(steps)],
            "weights_sha256": "aa",
            "peak_allocated_bytes": None,
            "peak_reserved_bytes": None,
            "peak_rss_bytes": 2**20,
            **rank_changes.get(rank, {}),
        }
        for rank in range(world_size)
    ]
    return {
        "schema": 1,
        "variant": "fake",
        "started_at": "2026-01-01T00:00:00+00:00",
        "config": {"epochs": 1, "global_batch_size": 128, "warmup_steps": 0},
        "world_size": world_size,
        "backend": "gloo" if world_size > 1 else None,
        "device": "cpu",
        "replicas": 1,
        "wrapper": "DistributedDataParallel",
        "batch_norms": ["BatchNorm2d"],
        "precision": {"weights": "float32", "asked": "float32", "compute": "float32", "scaler": False},
        "steps": steps,
        "epochs": [{"test_accuracy": 0.9}],
        "ranks": ranks,
        "environment": ENVIRONMENT,
        **changes,
    }


def job(path: Path = Path("fake.py"), world_size: int = 2, launcher: str = "torchrun") -> Job:
    """A run of the script at `path`."""
    return Job(Variant(path.stem, path, "own"), world_size, launcher)


def script(folder: Path, name: str, body: str = "", world_size: int = 1, **changes: Any) -> Path:
    """A script without torch that runs `body`, then leaves a record and says goodbye."""
    raw = json.dumps(raw_record(world_size, **changes))
    path = folder / f"{name}.py"
    path.write_text(
        f'"""Fake."""\nimport json, os, signal, subprocess, sys, time\n{body}\n'
        f'record = sys.argv[sys.argv.index("--record") + 1]\nopen(record, "w").write({raw!r})\nprint("goodbye")\n'
    )
    return path


def harness_command(*arguments: str) -> list[str]:
    """`python -m bench ARGUMENTS`, on a machine that is known already: no probe, so torch is never imported."""
    start = (
        "import bench.machine; from tests.bench.fakes import ENVIRONMENT; "
        "bench.machine.probe = lambda stop: ENVIRONMENT; from bench.cli import main; main()"
    )
    return [sys.executable, "-c", start, *arguments]
