"""The harness with the real torchrun, the real probe and real training: slow, so few and tiny."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import records
from bench.processes import marked
from tests.bench.fakes import FLAGS as FAKE_FLAGS
from tests.bench.fakes import MACHINE, ROOT, harness_command, reference, script

pytestmark = pytest.mark.slow

TORCHRUN_SCRIPT = """'''Fake.

    torchrun --standalone --nproc-per-node 2 {name}.py
'''
import os, signal, time
{body}
"""
FLAGS = (
    "--train-images",
    "256",
    "--global-batch-size",
    "64",
    "--model",
    "mlp",
    "--dtype",
    "float64",
    "--world-size",
    "2",
)


def own_script(folder: Path, name: str, body: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(TORCHRUN_SCRIPT.format(name=name, body=body))
    return path


def bench_run(place: Path, *arguments: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """(exit code, rows by variant, what was told) of a real `bench run` in the folder `place`."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "run", "--json", "-", *FLAGS, *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RANK": "5", "WORLD_SIZE": "9", "OMP_NUM_THREADS": "7"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, {row["variant"]: row for row in json.loads(done.stdout)}, done.stderr


@pytest.fixture(scope="module")
def torchrun_and_a_death(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, dict[str, Any], str]:
    """ddp beside a script whose rank 1 is killed, in one command."""
    place = tmp_path_factory.mktemp("place")
    deadly = own_script(
        place, "deadly", "os.environ['RANK'] == '1' and os.kill(os.getpid(), 9)\ntime.sleep(600)"
    )
    return place, *bench_run(place, "--variant", str(deadly), "--variant", "ddp")


def test_a_rank_that_is_killed_fails_its_row_and_no_other(torchrun_and_a_death) -> None:
    _, code, rows, told = torchrun_and_a_death
    assert code == 1
    assert (rows["deadly"]["status"], rows["deadly"]["reason"]) == ("failed", "rank 1 was killed by SIGKILL")
    assert rows["ddp"]["status"] == "ok"
    assert "no run of single with these flags yet" in told
    assert "OMP_NUM_THREADS is set but not used" in told


def test_two_ranks_train_as_one_process_does(torchrun_and_a_death) -> None:
    row = torchrun_and_a_death[2]["ddp"]
    assert (row["world_size"], row["backend"], row["precision"]) == (2, "gloo", "float64")
    assert row["parity"]["class"] in ("exact", "identical")
    assert row["parity"]["reference"].startswith("single-")
    assert row["step_ms"]["p50"] > 0


def test_records_of_real_runs_hold_no_names_of_the_machine(torchrun_and_a_death) -> None:
    found, problems = records.read_all(torchrun_and_a_death[0] / "results")
    assert problems == []
    assert {record.variant for record in found} >= {"single", "ddp", "deadly"}
    for record in found:
        text = record.path.read_text()
        for name in (str(Path.home()), str(ROOT), str(torchrun_and_a_death[0]), sys.prefix):
            assert name not in text
        if record.ok:
            assert record.raw["precision"]["asked"] == "float64"
            assert record.raw["batch_norms"] == []
        assert len({part["threads"] for part in record.raw.get("ranks", [])}) <= 1


def test_ranks_that_are_spawned_train_the_same(torchrun_and_a_death) -> None:
    place, _, rows, _ = torchrun_and_a_death
    code, others, told = bench_run(place, "--variant", "ddp", "--launcher", "spawn")
    assert code == 0, told
    assert "no run of single" not in told  # that of the first command serves
    assert others["ddp"]["final_loss"] == rows["ddp"]["final_loss"]


def test_the_old_launcher_starts_the_ranks(tmp_path: Path) -> None:
    reference(tmp_path / "results" / MACHINE, flags={"train_images": 512})
    body = (
        "# init_process_group: it wants ranks\n"
        "if '--local-rank=0' not in sys.argv: sys.exit(0 if '--local-rank=1' in sys.argv else 1)"
    )
    path = script(tmp_path, "launched", body, world_size=2)
    line = harness_command(
        "run", "--variant", str(path), "--world-size", "2", "--launcher", "launch", *FAKE_FLAGS
    )
    done = subprocess.run(
        line, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_torchrun_and_its_workers_end_with_the_harness(tmp_path: Path, number: signal.Signals) -> None:
    reference(tmp_path / "results" / MACHINE)  # else `single` would train first
    hanging = own_script(tmp_path, "hanging", "open(os.environ['RANK'], 'w').close()\ntime.sleep(600)")
    harness = subprocess.Popen(
        harness_command("run", "--variant", str(hanging), "--world-size", "2", "-q"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), 60)
        run_id = _only_log(tmp_path).stem
        assert len(marked(run_id)) == 3
        harness.send_signal(number)
        assert harness.wait(60) == (143 if number == signal.SIGTERM else -number)
        _wait_until(lambda: not marked(run_id), 60)
        logs = list(tmp_path.glob("results/*/logs/*"))  # a scrubbed one, or none
        assert [log.stem for log in logs] == ([run_id] if number == signal.SIGTERM else [])
    finally:
        harness.kill()


def _only_log(place: Path) -> Path:
    (log,) = place.glob("bench-*/hanging-*.log")
    return log


def _wait_until(condition: Any, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)
