"""Every variant starts by its real command: through the harness, and by the one in its docstring."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.registry import variants
from tests.ranks import ROOT

TINY = ("--train-images", "128", "--global-batch-size", "32", "--model", "tests.networks:Small")
METHODS = [variant for variant in variants().values() if variant.kind == "method"]
SEVEN = ("single", "single_amp", "dp", "ddp", "ddp_spawn", "ddp_amp", "ddp_syncbn")

pytestmark = pytest.mark.slow


def rows_of(folder: Path, names: tuple[str, ...], world_size: int) -> dict[str, dict]:
    """The rows of one `bench run`, by variant; all must be ok."""
    chosen = [word for name in names for word in ("--variant", name)]
    command = [sys.executable, "-m", "bench", "run", *chosen, *TINY, "--world-size", str(world_size)]
    done = subprocess.run(
        [*command, "--results-dir", str(folder), "--json", "-", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return {row["variant"]: row for row in json.loads(done.stdout)}


@pytest.mark.parametrize("part", range(3))
def test_every_variant_runs_through_the_harness_on_two_ranks(part, tmp_path):
    names = tuple(variant.name for variant in METHODS[part::3])
    rows = rows_of(tmp_path, names, 2)
    assert tuple(rows) == names
    for variant in METHODS[part::3]:
        row = rows[variant.name]
        assert row["status"] == "ok", row["reason"]
        assert row["world_size"] == (1 if variant.ranks == "one" else 2)
        assert row["images_per_s"] > 0


def test_the_first_seven_run_through_the_harness_on_one_rank(tmp_path):
    rows = rows_of(tmp_path, SEVEN, 1)
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert {row["world_size"] for row in rows.values()} == {1}
    assert rows["ddp"]["parity"]["class"] == "identical"


@pytest.mark.parametrize("name", ["single", "ddp", "ddp_spawn", "single_reordered"])
def test_the_command_in_the_docstring_runs(name, tmp_path):
    words = shlex.split(variants()[name].command)
    environment = dict(os.environ)
    if "=" in words[0]:
        key, _, value = words.pop(0).partition("=")
        environment[key] = value
    program = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}[
        words[0]
    ]
    done = subprocess.run(
        [*program, *words[1:], *TINY, "--record", str(tmp_path / "record.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        env={**environment, "PYTHONWARNINGS": "error::FutureWarning"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "record.json").read_text())["steps"] == 4
    assert "epoch 1/1: loss" in done.stdout
