"""`bench run` from outside, with scripts that take no time: statuses, exit codes, records, being stopped."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import records
from tests.bench.fakes import MACHINE, ROOT, harness_command, reference, script

HANG = "time.sleep(600)"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder to run in, whose results have a reference run already: no test here trains."""
    reference(tmp_path / "results" / MACHINE)
    return tmp_path


def start(place: Path, *paths: Path, flags: tuple[str, ...] = ()) -> subprocess.Popen:
    named = [word for path in paths for word in ("--variant", str(path))]
    return subprocess.Popen(
        harness_command("run", *named, "--json", "-", *flags),
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
    reference(place / "results" / MACHINE, flags={"epochs": 3, "data_dir": place.name})
    run(place, script(place, "mine"), flags=("--epochs", "3", "--data-dir", str(place)))
    (record,) = stored(place)
    assert record.run["argv"] == ["python", "mine.py", "--epochs", "3", "--data-dir", place.name]
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
    deadline = time.monotonic() + 20
    while not any("slow.py" in " ".join(process.cmdline()) for process in living(place)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    stopped_at = time.monotonic()
    harness.send_signal(number)
    exit_code, rows, _ = finish(harness)
    assert time.monotonic() - stopped_at < 5
    assert exit_code == code
    assert [row["status"] for row in rows] == ["ok", "interrupted", "interrupted"]
    assert rows[1]["reason"] == f"stopped by {number.name}"
    assert [record.status for record in stored(place)] == ["ok", "interrupted"]
    assert living(place) == []


def test_killed_at_any_moment_every_record_is_whole(place: Path) -> None:
    paths = [script(place, name, "time.sleep(0.1)") for name in ("one", "two", "three")]
    luck = random.Random(0)
    for _ in range(4):
        harness = start(place, *paths, flags=("--repeats", "3"))
        time.sleep(luck.uniform(0.3, 2.0))
        harness.kill()
        harness.communicate()
    assert all(record.ok for record in stored(place))  # reading them has found no file that is none
    assert json.loads((place / "results" / MACHINE / "single-reference.json").read_text())
