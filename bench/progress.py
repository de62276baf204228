"""What a user sees on stderr while runs go on: a live line on a terminal, plain lines elsewhere."""

import shlex
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from bench.plan import Job
from bench.records import Record

_REFRESH_S = 0.25


class Reporter:
    """Told by the runner what happens. `quiet`: says nothing; `verbose`: shows commands and output too."""

    def __init__(self, quiet: bool = False, verbose: bool = False, stream: TextIO | None = None) -> None:
        self.quiet, self.verbose, self.stream = quiet, verbose, stream or sys.stderr
        self._live = _LiveLine(self.stream) if self.stream.isatty() and not quiet and not verbose else None
        self._job: Job | None = None
        self._log_at = 0

    def note(self, text: str) -> None:
        """One line the user should know of."""
        if not self.quiet:
            self._print(f"note: {text}")

    def warn(self, text: str) -> None:
        """One line the user must know of, however quiet it is to be."""
        self._print(f"warning: {text}")

    def begin(self, job: Job, position: str, command: list[str], progress: Path, log: Path) -> None:
        """A run starts; `progress` is the file in which its rank 0 says how far it is."""
        self._job, self._position, self._progress, self._log = job, position, progress, log
        self._began, self._next, self._log_at = time.monotonic(), 0.0, 0
        ranks = f"{job.world_size} rank{'s' * (job.world_size > 1)}"
        self._head = f"[{position}] {job.variant.name}, {ranks}"
        if self.verbose:
            self._print(f"$ {shlex.join(command)}")
        if not self._live and not self.quiet:
            self._print(f"{self._head}: started")

    def tick(self) -> None:
        """Called a few times a second while a run goes on."""
        if self.verbose:
            self._echo_log()
        now = time.monotonic()
        if self._live and now >= self._next:
            self._next = now + _REFRESH_S
            self._live.show(self._head, *_steps(self._progress), now - self._began)

    def log_ends(self) -> None:
        """The run has printed its last: after this call its log is moved elsewhere."""
        if self.verbose:
            self._echo_log()

    def end(self, record: Record) -> None:
        """A run is over, and judged."""
        if self._live:
            self._live.clear()
        if self.quiet:
            return
        reason = f": {record.run['reason']}" if record.run["reason"] else ""
        self._print(f"{self._head}: {record.status} after {record.run['wall_s']:.1f} s{reason}")
        if record.status in ("failed", "timeout") and not self.verbose:
            for line in record.run["log_tail"]:
                self._print(f"    {line}")
            self._print(f"    ... all of it in {record.path.parent / record.run['log']}")

    def _echo_log(self) -> None:
        """Pass on what the run printed since the last look."""
        try:
            with open(self._log, "rb") as log:
                log.seek(self._log_at)
                new = log.read()
        except OSError:
            return
        self._log_at += len(new)
        self.stream.write(new.decode(errors="replace"))
        self.stream.flush()

    def _print(self, text: str) -> None:
        if self._live:
            self._live.clear()
        print(text, file=self.stream, flush=True)


class _LiveLine:
    """A bar that is drawn anew by whoever calls `show`: no thread of its own takes time from the ranks."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # takes a tenth of a second, for terminals only
        from rich.progress import BarColumn, Progress, TextColumn

        self._columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}")
        self._make = lambda: Progress(
            *self._columns, console=Console(file=stream), auto_refresh=False, transient=True
        )
        self._progress: Any = None

    def show(self, head: str, done: int, total: int, elapsed_s: float) -> None:
        """`total` 0: not known yet, while the ranks start."""
        if self._progress is None:
            self._progress = self._make()
            self._progress.start()
            self._task = self._progress.add_task(head, total=None, state="")
        state = f"step {done} of {total}" if total else "starting"
        clock = f"{int(elapsed_s) // 60}:{int(elapsed_s) % 60:02d}"
        self._progress.update(
            self._task, description=head, completed=done, total=total or None, state=f"{state}  {clock}"
        )
        self._progress.refresh()

    def clear(self) -> None:
        """Take the line off the screen, so that plain text can follow."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _steps(progress: Path) -> tuple[int, int]:
    """(done, total) as rank 0 last wrote them; zeros before that, and while it writes."""
    try:
        done, total = progress.read_text().split()
        return int(done), int(total)
    except (OSError, ValueError):
        return 0, 0
