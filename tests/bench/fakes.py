"""Stand-ins for what takes long: a machine that needs no probe, records and scripts that need no torch."""

import sys
from pathlib import Path
from typing import Any

from bench import records
from bench.flags import Config, stored_config
from bench.plan import Job
from bench.provenance import code_digest
from bench.records import Record
from bench.registry import VARIANTS_DIR, Variant

ROOT = Path(__file__).resolve().parents[2]
MACHINE = "amd-epyc-2-cores"  # the slug of ENVIRONMENT
# What a fake is asked to train: `raw_record` has the four steps of these images.
FLAGS = ("--train-images", "512")
CONFIG = stored_config(Config(train_images=512))
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
    """A record as StepLog writes it for a healthy run on a CPU; `rank_changes={1: {...}}` is for rank 1."""
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
        "config": {**CONFIG, "train_images": steps * CONFIG["global_batch_size"], "warmup_steps": 0},
        "world_size": world_size,
        "backend": "gloo" if world_size > 1 else None,
        "device": "cpu",
        "replicas": 1,
        "wrapper": "DistributedDataParallel",
        "batch_norms": ["BatchNorm2d"],
        "precision": {"weights": "float32", "asked": "float32", "compute": "float32", "scaler": False},
        "steps": steps,
        "epochs": [{"test_accuracy": 0.9, "test_images": 10_000}],
        "ranks": ranks,
        "environment": ENVIRONMENT,
        **changes,
    }


def job(path: Path = Path("fake.py"), world_size: int = 2, launcher: str = "torchrun") -> Job:
    """A run of the script at `path`."""
    return Job(Variant(path.stem, path, "own"), world_size, launcher)


def script(folder: Path, name: str, body: str = "", world_size: int = 1, **changes: Any) -> Path:
    """A script without torch that runs `body`, then leaves the record of a run with `world_size` ranks.

    The record says that it trained by the flags the script was given, and what `config=` says otherwise.
    """
    config = changes.pop("config", {})
    path = folder / f"{name}.py"
    path.write_text(
        f"""'Fake.'
import json, os, signal, subprocess, sys, time
{body}
import importlib.util
spec = importlib.util.spec_from_file_location("config", {str(VARIANTS_DIR / "core" / "config.py")!r})
module = sys.modules["config"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
outputs = ("record", "checkpoint_dir", "tensorboard")
config = dict(vars(module.Config.from_cli()), **{config!r})
config = dict((name, config[name]) for name in config if name not in outputs)
with open(sys.argv[sys.argv.index("--record") + 1], "w") as record:
    json.dump(dict({raw_record(world_size, **changes)!r}, config=config), record)
print("goodbye")
"""
    )
    return path


def reference(
    folder: Path, name: str = "single-reference", flags: dict[str, Any] | None = None, **changes: Any
) -> Record:
    """A record of `single` with these flags that fits what `script` leaves, stored in `folder`."""
    config = stored_config(Config(**flags or {}))
    raw = raw_record(
        1, variant="single", config=config, epochs=[{"test_accuracy": 0.9}] * config["epochs"], **changes
    )
    raw["run"] = {"status": "ok", "reason": None, "code": code_digest(), "launched_at": raw["started_at"]}
    record = Record(folder / f"{name}.json", raw)
    folder.mkdir(parents=True, exist_ok=True)
    records.write(record)
    return record


def harness_command(*arguments: str) -> list[str]:
    """`python -m bench ARGUMENTS` on a machine that is known already: no probe, and so no torch."""
    start = (
        "import bench.machine; from tests.bench.fakes import ENVIRONMENT; "
        "bench.machine.probe = lambda stop: ENVIRONMENT; from bench.cli import main; main()"
    )
    return [sys.executable, "-c", start, *arguments]
