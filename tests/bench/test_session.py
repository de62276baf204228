"""`bench run` from outside, with scripts that take no time: statuses, exit codes, records, being stopped."""

import argparse
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import filelock
import psutil
import pytest

from bench import records
from bench.flags import Config
from bench.session import default_world_size
from tests.bench.fakes import FLAGS, MACHINE, ROOT, harness_command, reference, script

HANG = "time.sleep(600)"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder to run in, whose results have a reference run already: no test here trains."""
    reference(tmp_path / "results" / MACHINE, flags={"train_images": 512})
    return tmp_path


def start(place: Path, *paths: Path, flags: tuple[str, ...] = ()) -> subprocess.Popen:
    named = [word for path in paths for word in ("--variant", str(path))]
    return subprocess.Popen(
        harness_command("run", *named, "--json", "-", *FLAGS, *flags),
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(harness: subprocess.Popen) -> tuple[int, list[dict[str, Any]], str]:
    """(exit code, rows, what it told)."""
    output, told = harness.communicate(timeout=60)
    return harness.returncode, json.loads(output), told


def run(place: Path, *paths: Path, flags: tuple[str, ...] = ()) -> tuple[int, list[dict[str, Any]], str]:
    return finish(start(place, *paths, flags=flags))


def stored(place: Path) -> list[records.Record]:
    """The records of the runs made here, without the reference there was."""
    found, problems = records.read_all(place / "results")
    assert problems == []
    return [record for record in found if record.variant != "single"]


def living(place: Path) -> list[psutil.Process]:
    """Processes that run a script out of this place."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "-c" not in line and any(str(place) in word and word.endswith(".py") for word in line):
            found.append(process)  # -c: that is the harness, which names them all
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def test_a_good_run(place: Path) -> None:
    code, rows, told = run(place, script(place, "mine"))
    assert code == 0
    assert (rows[0]["variant"], rows[0]["status"], rows[0]["reason"]) == ("mine", "ok", None)
    assert rows[0]["parity"] == {
        "reference": "single-reference.json",
        "class": "identical",
        "max_abs_diff": 0.0,
        "tolerance": 0.0,
    }
    (record,) = stored(place)
    assert Path(rows[0]["record"]) == record.path.relative_to(place)
    assert "[1/1] mine, 1 rank: ok" in told
    assert "goodbye" in (record.path.parent / record.run["log"]).read_text()


def test_what_a_record_says_of_its_run(place: Path) -> None:
    reference(place / "results" / MACHINE, flags={"train_images": 512, "epochs": 3, "data_dir": place.name})
    run(place, script(place, "mine"), flags=("--epochs", "3", "--data-dir", str(place)))
    (record,) = stored(place)
    assert record.run["argv"] == ["python", "mine.py", "--epochs", "3", *FLAGS, "--data-dir", place.name]
    assert record.raw["config"]["data_dir"] == place.name
    assert record.run["omp_num_threads"] == "2"
    assert str(place) not in record.path.read_text()


def test_repeats_share_a_command_and_alternate(place: Path) -> None:
    paths = [script(place, "one"), script(place, "two")]
    _, rows, _ = run(place, *paths, flags=("--repeats", "2"))
    assert [row["variant"] for row in rows] == ["one", "two"]
    found = sorted(stored(place), key=lambda record: record.run["order"])
    assert [record.variant for record in found] == ["one", "two", "two", "one"]
    assert [record.run["repeat"] for record in found] == [0, 0, 1, 1]
    assert len({record.run["command_id"] for record in found}) == 1


def test_failures_are_rows_and_the_others_go_on(place: Path) -> None:
    bad = {
        "silent": script(place, "silent", "sys.exit(0)"),
        "seven": script(place, "seven", "print('last words'); sys.exit(7)"),
        "raises": script(place, "raises", "raise ValueError('bad')"),
        "killed": script(place, "killed", "os.kill(os.getpid(), signal.SIGKILL)"),
        "half": script(
            place, "half", "open(sys.argv[sys.argv.index('--record') + 1], 'w').write('{'); sys.exit()"
        ),
        "foreign": script(place, "foreign", world_size=5),
        "naughty": script(place, "naughty", rank_changes={0: {"loss": [2.0, None, 1.0, 1.0]}}),
        "absent": script(place, "absent", "print('absent.py: unavailable: needs 2 GPUs'); sys.exit(69)"),
    }
    code, rows, told = run(place, *bad.values(), script(place, "good"))
    assert code == 1
    assert {row["variant"]: (row["status"], row["reason"]) for row in rows} == {
        "silent": (
            "failed",
            "it ended without an error but left no record: is log.epoch(...) called on every rank?",
        ),
        "seven": ("failed", "the process ended with exit code 7"),
        "raises": ("failed", "the process: ValueError: bad"),
        "killed": ("failed", "the process was killed by SIGKILL"),
        "half": (
            "failed",
            "it ended without an error but left no record: is log.epoch(...) called on every rank?",
        ),
        "foreign": ("failed", "asked for 1 rank, 5 trained together"),
        "naughty": ("diverged", "the loss is not finite from step 2 of 4 on"),
        "absent": ("skipped", "needs 2 GPUs"),
        "good": ("ok", None),
    }
    assert "last words" in told
    assert len(stored(place)) == len(bad) + 1
    assert all(row["images_per_s"] is None for row in rows if row["status"] != "ok")


def test_a_skipped_row_is_no_failure(place: Path) -> None:
    path = script(place, "absent", "print('absent.py: unavailable: needs 2 GPUs'); sys.exit(69)")
    assert run(place, path)[0] == 0


def test_a_run_that_takes_too_long_is_a_row_and_leaves_nothing(place: Path) -> None:
    code, rows, _ = run(
        place, script(place, "slow", HANG), script(place, "good"), flags=("--run-timeout", "1")
    )
    assert code == 1
    assert [row["status"] for row in rows] == ["timeout", "ok"]
    assert "--run-timeout" in rows[0]["reason"]
    assert living(place) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_keeps_what_is_finished_and_leaves_no_process(place: Path, number: int, code: int) -> None:
    paths = [script(place, "good"), script(place, "slow", HANG), script(place, "never")]
    harness = start(place, *paths)
    deadline = time.monotonic() + 60
    while not any("slow.py" in " ".join(process.cmdline()) for process in living(place)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    harness.send_signal(number)
    exit_code, rows, _ = finish(harness)  # within a minute, where the script would take ten
    assert exit_code == code
    assert [row["status"] for row in rows] == ["ok", "interrupted", "interrupted"]
    assert rows[1]["reason"] == f"stopped by {number.name}"
    assert [record.status for record in stored(place)] == ["ok", "interrupted"]
    assert living(place) == []


def test_what_was_trained_other_than_asked_is_a_failure(place: Path) -> None:
    wrong = {
        "rate": script(place, "rate", config={"lr": 0.5}),
        "images": script(place, "images", steps=3),
        "passes": script(place, "passes", epochs=[{"test_accuracy": 0.9, "test_images": 10_000}] * 2),
        "tested": script(place, "tested", epochs=[{"test_accuracy": 0.9, "test_images": 500}]),
    }
    code, rows, _ = run(place, *wrong.values(), flags=("--lr", "0.02"))
    assert code == 1
    assert {row["variant"]: (row["status"], row["reason"]) for row in rows} == {
        "rate": ("failed", "asked for lr 0.02, trained with 0.5"),
        "images": ("failed", "it made 3 steps, 1 epoch of 512 images have 4"),
        "passes": ("failed", "asked for epochs 1, it trained 2"),
        "tested": ("failed", "it tested on 500 images, its test_images are to be 10000"),
    }


def test_a_bare_nan_is_divergence(place: Path) -> None:
    path = script(place, "naughty", "nan = float('nan')", rank_changes={0: {"loss": [2.0, Bare(), 1.0, 1.0]}})
    assert run(place, path)[1][0]["status"] == "diverged"


class Bare:
    """A name in the text of a script."""

    def __repr__(self) -> str:
        return "nan"


def test_two_at_once_are_told_and_recorded(place: Path) -> None:
    lock = filelock.FileLock(place / "results" / MACHINE / ".lock")
    path = script(place, "mine")
    with lock:
        _, _, told = run(place, path)
    assert "another bench run is at work on this machine" in told
    assert "another bench run" not in run(place, path)[2]
    found = sorted(stored(place), key=lambda record: record.path.stat().st_mtime_ns)
    assert [record.run["alone"] for record in found] == [False, True]
    assert len(found[0].run["load_average_after"]) == 3


def test_a_record_that_is_lost_is_told_even_when_quiet(place: Path) -> None:
    line = harness_command("run", "--variant", str(script(place, "mine")), "--json", "-", "-q", *FLAGS)
    full = "def full(path, text): raise OSError(28, 'No space left on device')"
    line[2] = f"import bench.records\n{full}\nbench.records.replace_text = full\n{line[2]}"
    done = subprocess.run(
        line, cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    (row,) = json.loads(done.stdout)
    assert done.returncode == 1
    assert row["record"] is None
    assert "No space left on device): and lost" in done.stderr


def test_rows_go_into_a_file_and_not_into_a_folder(place: Path) -> None:
    path = script(place, "mine")
    line = harness_command("run", "--variant", str(path), "-q", *FLAGS, "--json")
    options: dict[str, Any] = {"cwd": place, "capture_output": True, "text": True}
    options["env"] = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*line, "results"], **options)
    assert done.returncode == 2
    assert "--json: results is a folder" in done.stderr
    assert stored(place) == []
    assert subprocess.run([*line, "rows.json"], **options).returncode == 0
    assert json.loads((place / "rows.json").read_text())[0]["variant"] == "mine"


@pytest.mark.parametrize(("gpus", "batch", "ranks"), [(0, 128, 2), (8, 128, 8), (3, 128, 2), (6, 100, 5)])
def test_as_many_ranks_as_gpus_that_divide_the_batch(gpus: int, batch: int, ranks: int) -> None:
    request = argparse.Namespace(world_size=None, cfg=Config(global_batch_size=batch))
    found, notes = default_world_size(request, gpus)
    assert found == ranks
    assert bool(notes) == (gpus not in (0, ranks))


def test_killed_at_any_moment_every_record_is_whole(place: Path) -> None:
    paths = [script(place, name, "time.sleep(0.1)") for name in ("one", "two", "three")]
    luck = random.Random(0)
    for _ in range(8):
        harness = start(place, *paths, flags=("--repeats", "3"))
        time.sleep(luck.uniform(0.3, 2.0))
        harness.kill()
        harness.communicate()
    assert stored(place)
    assert all(record.ok for record in stored(place))  # reading them has found no file that is none
    assert json.loads((place / "results" / MACHINE / "single-reference.json").read_text())
