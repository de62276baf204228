import io
from pathlib import Path

from bench.progress import Reporter
from bench.records import Record
from tests.bench.fakes import job


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(status: str = "ok", reason: str | None = None) -> Record:
    run = {"status": status, "reason": reason, "wall_s": 2.5, "log": "logs/a.log", "log_tail": ["last words"]}
    return Record(Path("results/a.json"), {"run": run})


def shown(tmp_path: Path, ended: Record, stream: io.StringIO, **options: bool) -> str:
    """What a user sees of one run that is at step 3 of 8 and has printed a line."""
    (tmp_path / "progress").write_text("3 8")
    (tmp_path / "log").write_text("a line\n")
    reporter = Reporter(stream=stream, **options)
    reporter.note("something")
    reporter.begin(job(), "1/2", ["python", "fake.py"], tmp_path / "progress", tmp_path / "log")
    reporter.tick()
    reporter.end(ended)
    return stream.getvalue()


def test_plain_lines_at_start_and_end(tmp_path: Path) -> None:
    assert shown(tmp_path, record(), io.StringIO()).splitlines() == [
        "note: something",
        "[1/2] fake, 2 ranks: started",
        "[1/2] fake, 2 ranks: ok after 2.5 s",
    ]


def test_a_terminal_shows_the_step(tmp_path: Path) -> None:
    text = shown(tmp_path, record(), Terminal())
    assert "step 3 of 8" in text
    assert "started" not in text


def test_a_failure_is_told_with_its_last_words(tmp_path: Path) -> None:
    text = shown(tmp_path, record("failed", "rank 1 was killed by SIGKILL"), io.StringIO())
    assert "failed after 2.5 s: rank 1 was killed by SIGKILL" in text
    assert "last words" in text
    assert "results/logs/a.log" in text


def test_quiet_says_nothing(tmp_path: Path) -> None:
    assert shown(tmp_path, record("failed", "x"), Terminal(), quiet=True) == ""


def test_a_warning_is_shown_even_when_quiet() -> None:
    stream = io.StringIO()
    Reporter(quiet=True, stream=stream).warn("the record is lost")
    assert stream.getvalue() == "warning: the record is lost\n"


def test_verbose_shows_the_command_and_what_it_prints(tmp_path: Path) -> None:
    text = shown(tmp_path, record(), io.StringIO(), verbose=True)
    assert "$ python fake.py" in text
    assert text.count("a line") == 1


def test_before_the_ranks_have_started(tmp_path: Path) -> None:
    stream = Terminal()
    reporter = Reporter(stream=stream)
    reporter.begin(job(), "1/2", ["python"], tmp_path / "none", tmp_path / "none")
    reporter.tick()
    reporter.end(record())
    assert "starting" in stream.getvalue()
