"""Well-formed records with numbers that a test knows. None of them is ever a result."""

import json
from pathlib import Path
from typing import Any

import numpy as np

CONFIG = {
    "epochs": 1,
    "global_batch_size": 128,
    "lr": 0.02,
    "momentum": 0.9,
    "lr_schedule": "onecycle",
    "warmup_steps": 20,
    "seed": 0,
    "train_images": None,
    "model": "convnet",
    "norm": "batch",
    "dtype": "float32",
    "amp_dtype": "auto",
    "dataset": "mnist",
    "data_dir": None,
    "timeout": 120.0,
}
ENVIRONMENT = {
    "python": "3.12.1",
    "packages": {
        "torch": "2.14.1",
        "torchvision": "0.29.1",
        "numpy": "2.4.6",
        "accelerate": None,
        "apex": None,
    },
    "os": "Linux 6.1",
    "architecture": "x86_64",
    "cpu": "Test CPU",
    "cpu_capability": "AVX2",
    "usable_cores": 2,
    "memory_bytes": 16 * 2**30,
    "gpus": [],
    "cuda": None,
    "cudnn": None,
    "nccl": None,
    "host": "01234567",
}
RUN = {
    "status": "ok",
    "reason": None,
    "command_id": "c1",
    "asked_world_size": 1,
    "launcher": "none",
    "repeat": 0,
    "order": 0,
    "launched_at": "2026-01-02T03:04:05+00:00",
    "wall_s": 12.5,
    "argv": ["python", "variants/single.py"],
    "load_average": [0.4, 0.3, 0.2],
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "dirty": False,
    "log": "logs/x.log",
    "parity": None,
}


def record(
    variant: str, ms: float = 20.0, *, ranks: int = 1, steps: int = 60, shift: float = 0.0, **change: Any
) -> dict[str, Any]:
    """A record of `steps` steps of about `ms` each, whose loss lies `shift` off that of `single`.

    `change` replaces keys at the top, or, with a dict, keys within `run`, `config`, `precision` ...
    """
    noise = np.random.default_rng(len(variant) + ranks).gamma(2, 0.05, (ranks, steps))
    loss = 2.3 * np.exp(-np.arange(steps) / 20) + 0.1
    raw = {
        "schema": 1,
        "variant": variant,
        "started_at": "2026-01-02T03:04:07+00:00",
        "timing_method": "perf_counter",
        "config": CONFIG,
        "world_size": ranks,
        "backend": "gloo" if ranks > 1 else None,
        "device": "cpu",
        "replicas": 1,
        "wrapper": "DistributedDataParallel" if ranks > 1 else "ConvNet",
        "parameters": 29034,
        "precision": {"weights": "float32", "compute": "float32", "loss": "float32", "scaler": False},
        "steps": steps,
        "epochs": [{"steps": steps, "train_s": 1.0, "test_accuracy": 0.9876, "test_images": 10000}],
        "ranks": [
            {
                "rank": rank,
                "host": "01234567",
                "device": "cpu",
                "threads": 2 // ranks or 1,
                "step_ms": (ms * (1 + noise[rank])).round(4).tolist(),
                "loss": (loss + shift * np.arange(steps)).tolist(),
                "peak_allocated_bytes": None,
                "peak_reserved_bytes": None,
                "peak_rss_bytes": (600 + 10 * rank) * 2**20,
                "pss_bytes": 400 * 2**20,
            }
            for rank in range(ranks)
        ],
        "environment": ENVIRONMENT,
        "run": {**RUN, "asked_world_size": ranks},
    }
    return _changed(raw, change)


def failed(
    variant: str, reason: str, *, status: str = "failed", ranks: int = 2, **run: Any
) -> dict[str, Any]:
    """What the harness stores of a run that left nothing of its own."""
    run = {**RUN, "status": status, "reason": reason, "asked_world_size": ranks, **run}
    return {"schema": 1, "variant": variant, "config": CONFIG, "run": run}


def repeats(variant: str, *ms: float, **change: Any) -> list[dict[str, Any]]:
    """One record for each of `ms`, as the repeats of one command."""
    run = change.pop("run", {})
    return [
        record(variant, each, run={**run, "repeat": at, "order": at}, **change) for at, each in enumerate(ms)
    ]


def write(folder: Path, *raws: dict[str, Any]) -> None:
    """Store the records in `folder` under names of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = len(list(folder.glob("*.json")))
    for at, raw in enumerate(raws, taken):
        (folder / f"{raw['variant']}-{at:04}.json").write_text(json.dumps(raw) + "\n")


def _changed(raw: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    for key, value in change.items():
        raw[key] = {**raw.get(key, {}), **value} if isinstance(value, dict) else value
    return raw
