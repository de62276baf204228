"""That no process outlives its run, however it ends. The scripts here act as torchrun does, without torch."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench import processes
from bench.processes import Outcome, Run, Stop, marked
from tests.bench.fakes import ROOT

# A worker in a session of its own, as torchrun starts it: no signal to its parent or its group reaches it.
LAUNCHER = """
import signal, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", {worker!r}], start_new_session=True)
{then}
"""
SLEEP = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def start(tmp_path: Path, text: str) -> Run:
    path = tmp_path / "launcher.py"
    path.write_text(text)
    return Run([sys.executable, str(path)], dict(os.environ), secrets.token_hex(8), tmp_path / "log")


def wait(
    run: Run, stop: Stop | None = None, timeout_s: float = 60, tick: Callable[[], None] = lambda: None
) -> Outcome:
    return run.wait(timeout_s, Stop() if stop is None else stop, tick)


def wait_until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def test_a_run_that_ends_by_itself(tmp_path: Path) -> None:
    run = start(tmp_path, "import sys; print('hello'); sys.exit(7)")
    outcome = wait(run)
    assert (outcome.exit_code, outcome.ended_by) == (7, None)
    assert run.log.read_text() == "hello\n"


def test_workers_that_a_launcher_leaves_behind_are_ended(tmp_path: Path) -> None:
    run = start(tmp_path, LAUNCHER.format(worker=SLEEP, then="sys.exit(0)"))
    assert wait(run).exit_code == 0
    assert marked(run.run_id) == []


def test_workers_of_a_killed_launcher_are_ended(tmp_path: Path) -> None:
    run = start(
        tmp_path, LAUNCHER.format(worker=SLEEP, then="import os; os.kill(os.getpid(), signal.SIGKILL)")
    )
    assert wait(run).exit_code == -signal.SIGKILL
    assert marked(run.run_id) == []


@pytest.mark.parametrize("worker", [SLEEP, DEAF])
def test_a_run_that_takes_too_long_is_ended_with_all_its_workers(tmp_path: Path, worker: str) -> None:
    run = start(tmp_path, LAUNCHER.format(worker=worker, then=SLEEP))
    began = time.monotonic()
    assert wait(run, timeout_s=1).ended_by == "timeout"
    assert time.monotonic() - began < 60
    assert marked(run.run_id) == []


def test_a_launcher_deaf_to_sigterm_is_killed_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 1.0)
    run = start(tmp_path, LAUNCHER.format(worker=SLEEP, then=DEAF))
    began = time.monotonic()
    wait(run, timeout_s=1)
    assert 2 < time.monotonic() - began < 60
    assert marked(run.run_id) == []


def test_a_stop_ends_the_run(tmp_path: Path) -> None:
    run, stop = start(tmp_path, LAUNCHER.format(worker=SLEEP, then=SLEEP)), Stop()
    ticks = iter(range(100))
    outcome = wait(run, stop, tick=lambda: next(ticks) > 2 and stop._note(signal.SIGINT, None))
    assert outcome.ended_by == "stop"
    assert (stop.name, stop.exit_code) == ("SIGINT", 130)
    assert marked(run.run_id) == []


def test_a_worker_that_hides_its_mark_is_found_as_a_descendant(tmp_path: Path) -> None:
    """It clears its environment, and its parent is gone by the time that the run ends."""
    text = (
        "import os, subprocess, sys, time\n"
        f"worker = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], env={{}}, start_new_session=True)\n"
        "open(sys.argv[0] + '.pid', 'w').write(str(worker.pid))\ntime.sleep(2)\n"
    )
    run = start(tmp_path, text)
    wait(run)
    pid = int((tmp_path / "launcher.py.pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's parent-death signal")
def test_nothing_survives_a_harness_that_is_killed_outright(tmp_path: Path) -> None:
    """The launcher hears of it by a signal, and ends its workers as torchrun does."""
    obedient = "signal.signal(signal.SIGTERM, lambda *_: (worker.kill(), sys.exit(1)))\n" + SLEEP
    (tmp_path / "launcher.py").write_text(LAUNCHER.format(worker=SLEEP, then=obedient))
    run_id = secrets.token_hex(8)
    harness = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys; from pathlib import Path; from bench.processes import Run, Stop\n"
            f"run = Run([sys.executable, 'launcher.py'], dict(os.environ), {run_id!r}, Path('log'))\n"
            "run.wait(600, Stop(), lambda: None)",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    wait_until(lambda: len(marked(run_id)) == 2)
    time.sleep(0.3)  # the launcher must have its handler in place, as torchrun has before it starts a worker
    harness.kill()
    harness.wait()
    wait_until(lambda: not marked(run_id))
