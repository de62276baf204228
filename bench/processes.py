"""One run's processes: started so that they cannot outlive the harness, watched, and ended to the last one.

torchrun puts each worker into a session of its own, so neither killing torchrun nor its process group reaches
them. What does: asking torchrun with SIGTERM, and then looking for our mark in the environment of every
process there is, which all descendants inherit whatever sessions they are in.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MARK = "BENCH_RUN_ID"
GRACE_S = 5.0
_POLL_S = 0.2
_LOOK_EVERY_S = 5.0  # walking the process table costs milliseconds, which the ranks would lose


class Stop:
    """Set by SIGINT, SIGTERM or SIGHUP; whoever waits looks at it. An exception could strike anywhere."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.again = False

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str:
        """Such as "SIGINT"."""
        return signal.Signals(self.signal).name

    @property
    def exit_code(self) -> int:
        """What a shell shows for a process that this signal ended: 130 after Ctrl-C."""
        return 128 + self.signal

    def listen(self) -> None:
        """From now on the signals are noted here."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)
        # There is none on Windows, and under nohup it is ignored on purpose.
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._note)

    def _note(self, number: int, frame: object) -> None:
        self.again = self.signal is not None  # a second Ctrl-C: no more patience
        self.signal = self.signal or number


@dataclass
class Outcome:
    """How a run's launcher ended. `ended_by`: None by itself, "timeout", or "stop"."""

    exit_code: int
    wall_s: float
    ended_by: str | None = None


@dataclass
class Run:
    """A command under supervision. `run_id` is unique to it and carried by all of its processes."""

    command: Sequence[str]
    environment: dict[str, str]
    run_id: str
    log: Path
    _seen: set[psutil.Process] = field(default_factory=set)

    def wait(self, timeout_s: float, stop: Stop, tick: Callable[[], None]) -> Outcome:
        """Run it to its end, or end it. No process of it is left afterwards, whichever way it went."""
        started, ended_by = time.monotonic(), None
        child = self._start()
        look_at = started + 1
        try:
            while child.poll() is None:
                now = time.monotonic()
                if stop or now - started > timeout_s:
                    ended_by = "stop" if stop else "timeout"
                    break
                if now > look_at:
                    self._look(child.pid)
                    look_at = now + _LOOK_EVERY_S
                tick()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
        finally:
            wall_s = time.monotonic() - started
            self._end(child, stop)
        return Outcome(child.returncode, wall_s, ended_by)

    def _start(self) -> subprocess.Popen:
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                guarded(self.command),
                env={**self.environment, MARK: self.run_id},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C in the terminal is for us; we end the run in order
            )

    def _look(self, pid: int) -> None:
        """Remember the descendants there are now: one might clear its environment and leave the tree."""
        with contextlib.suppress(psutil.Error):
            self._seen.update(psutil.Process(pid).children(recursive=True))

    def _end(self, child: subprocess.Popen, stop: Stop) -> None:
        """SIGTERM and time to act on it, then SIGKILL for whatever is left anywhere."""
        if child.poll() is None:
            self._look(child.pid)
            child.terminate()
            deadline = time.monotonic() + GRACE_S
            while child.poll() is None and time.monotonic() < deadline and not stop.again:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
        if child.poll() is None:
            child.kill()
            child.wait()
        kill_marked(self.run_id, self._seen)


def marked(run_id: str) -> list[psutil.Process]:
    """The living processes that carry this run's mark."""
    found = []
    for process in psutil.process_iter():
        # Not ours to read, gone meanwhile, or a zombie.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == run_id:
                found.append(process)
    return found


def kill_marked(run_id: str, seen: set[psutil.Process] = frozenset()) -> None:
    """SIGKILL every process with this mark or in `seen`, until a look at all processes finds none."""
    for _ in range(20):
        left = {process for process in seen if process.is_running()} | set(marked(run_id))
        left = {process for process in left if _alive(process)}
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil checks that the pid is still the same process
        psutil.wait_procs(left, timeout=1)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def guarded(command: Sequence[str]) -> list[str]:
    """`command`, on Linux by way of guard.py: there it gets SIGTERM should the harness be killed outright."""
    if not sys.platform.startswith("linux"):
        return list(command)
    guard = Path(__file__).with_name("guard.py")
    return [sys.executable, "-I", "-S", str(guard), str(os.getpid()), *command]
