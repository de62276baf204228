import errno
import io
from dataclasses import replace
from pathlib import Path

import pytest

from bench import records
from bench.flags import Config
from bench.plan import Job
from bench.processes import Stop
from bench.progress import Reporter
from bench.records import Record
from bench.registry import VARIANTS_DIR, Variant, find
from bench.runner import Runner, shown_command, stored_config
from tests.bench.fakes import ENVIRONMENT, script


def runner(folder: Path, cfg: Config | None = None, repeats: int = 1) -> Runner:
    (folder / "logs").mkdir()
    return Runner(
        cfg or Config(train_images=512), ENVIRONMENT, folder, Stop(), 60, Reporter(quiet=True), repeats
    )


def own(path: Path, order: int = 0) -> Job:
    return Job(Variant(path.stem, path, "own"), 1, "none", order=order)


@pytest.fixture
def yardsticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The code of `single` and its twin: each is a script here that leaves its name in the file `ran`."""
    bodies = {"single": "", "single_reordered": ""}

    def found(name: str) -> Variant:
        leave_name = f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')"
        return Variant(name, script(tmp_path, name, f"{leave_name}\n{bodies[name]}"), "method")

    monkeypatch.setattr("bench.runner.find", found)
    return bodies


def run_twice(folder: Path, loss: float = 2.0) -> list[Record]:
    """The records of a script of the user's, run twice, whose first loss is `loss`."""
    path = script(folder, "mine", rank_changes={0: {"loss": [loss, 1.0, 2 / 3, 0.5]}})
    return runner(folder).run_all([own(path, order) for order in (0, 1)])


def test_without_a_reference_single_runs_first_and_gets_no_row(tmp_path: Path, yardsticks: dict) -> None:
    done = run_twice(tmp_path)
    assert [record.variant for record in done] == ["mine", "mine"]
    kept, _ = records.read_all(tmp_path)
    (reference,) = [record for record in kept if record.variant == "single"]
    assert reference.run["order"] == -1
    assert {record.run["parity"]["reference"] for record in done} == {reference.path.name}
    assert done[0].run["parity"]["class"] == "identical"


def test_a_reference_that_fails_is_tried_once(tmp_path: Path, yardsticks: dict) -> None:
    yardsticks["single"] = "sys.exit(1)"
    done = run_twice(tmp_path)
    assert (tmp_path / "ran").read_text() == "single "
    assert [record.status for record in done] == ["ok", "ok"]
    assert done[0].run["parity"]["class"] == "not comparable"


def test_a_twin_runs_once_when_it_has_to_decide(tmp_path: Path, yardsticks: dict) -> None:
    done = run_twice(tmp_path, loss=2.1)
    assert (tmp_path / "ran").read_text() == "single single_reordered "
    assert [record.run["parity"]["class"] for record in done] == ["different", "different"]
    assert records.read(done[0].path).run["parity"] == done[0].run["parity"]


def test_without_a_twin_the_class_is_left_open(tmp_path: Path, yardsticks: dict) -> None:
    yardsticks["single_reordered"] = "sys.exit(1)"
    done = run_twice(tmp_path, loss=2.1)
    assert (tmp_path / "ran").read_text() == "single single_reordered "
    assert done[0].run["parity"]["class"] == "undecided"


def test_a_record_that_cannot_be_stored_is_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    place, rescue = tmp_path / "results", tmp_path / "rescue"
    write = records.write

    def full(record: Record) -> None:
        if record.path.parent == place:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(record)

    for folder in (place, rescue):
        folder.mkdir()
    monkeypatch.setattr("bench.records.write", full)
    monkeypatch.setattr("tempfile.tempdir", str(rescue))
    at_work = runner(place)
    at_work._yardsticks["single", 1] = None
    at_work.reporter = Reporter()
    (record,) = at_work.run_all([own(script(tmp_path, "mine"))])
    assert record.path.parent == rescue
    assert records.read(record.path).ok
    assert f"No space left on device): kept in {record.path}" in capsys.readouterr().err


def test_a_record_without_any_place_is_lost_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(record: Record) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    stream = io.StringIO()
    at_work = runner(tmp_path)
    at_work._yardsticks["single", 1] = None
    at_work.reporter = Reporter(quiet=True, stream=stream)
    job = own(script(tmp_path, "mine"))
    attempt = at_work._attempt(job, "1/1")
    monkeypatch.setattr("bench.records.write", full)
    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    monkeypatch.setattr(at_work, "_attempt", lambda *_: attempt)
    (record,) = at_work.run_all([job])
    assert record.ok
    assert at_work.unstored == {record.path.name: None}
    assert stream.getvalue().count("and lost") == 1


def test_a_parity_that_breaks_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr("bench.parity.parity", broken)
    at_work = runner(tmp_path)
    at_work._yardsticks["single", 1] = None
    done = at_work.run_all([own(script(tmp_path, name)) for name in ("one", "two")])
    assert [record.status for record in done] == ["ok", "ok"]
    for record in done:
        kept = records.read(record.path)
        assert kept.run["parity"] is None
        assert "its parity could not be judged: ZeroDivisionError float division" in kept.run["reason"]


def test_a_record_is_there_before_parity_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.parity.parity", killed)
    at_work = runner(tmp_path)
    at_work._yardsticks["single", 1] = None
    with pytest.raises(KeyboardInterrupt):
        at_work.run_all([own(script(tmp_path, "mine"))])
    assert [record.variant for record in records.read_all(tmp_path)[0]] == ["mine"]


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("tempfile.TemporaryDirectory", OSError(errno.ENOSPC, "No space left on device")),
        ("bench.runner.Run", OSError(errno.EMFILE, "Too many open files")),
        ("bench.runner._read_raw", RuntimeError("Could not determine home directory.")),
    ],
)
def test_an_attempt_that_breaks_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    at_work = runner(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(broken, fail)
        (record,) = at_work.run_all([Job(find("single"), 1, "none")][:1])
    assert record.status == "failed"
    assert str(getattr(error, "strerror", None) or error) in record.run["reason"]
    assert records.read(record.path).status == "failed"


def test_the_live_log_lies_outside_of_the_results(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    logs = tmp_path / "results" / "logs"
    body = f"open({str(seen)!r}, 'w').write(str(os.listdir({str(logs)!r})))"
    (tmp_path / "results").mkdir()
    at_work = runner(tmp_path / "results")
    at_work._yardsticks["single", 1] = None
    (record,) = at_work.run_all([own(script(tmp_path, "mine", body))])
    assert seen.read_text() == "[]"
    assert (record.path.parent / record.run["log"]).read_text() == "goodbye\n"


def test_verbose_shows_the_last_line_of_a_failing_run(tmp_path: Path) -> None:
    stream = io.StringIO()
    at_work = runner(tmp_path)
    at_work.reporter = Reporter(verbose=True, stream=stream)
    at_work._yardsticks["single", 1] = None
    at_work.run_all([own(script(tmp_path, "mine", "print('last words'); sys.exit(7)"))])
    assert stream.getvalue().count("last words") == 1


@pytest.mark.parametrize(("repeats", "folder"), [(1, "ddp"), (3, "ddp-2")])
def test_no_two_runs_share_a_checkpoint(tmp_path: Path, repeats: int, folder: str) -> None:
    at_work = runner(tmp_path, Config(checkpoint_dir="kept"), repeats)
    job = Job(find("ddp"), 2, "torchrun", repeat=repeats - 1)
    assert at_work._outputs(job).checkpoint_dir == str(Path("kept", folder))
    assert at_work._outputs(replace(job, order=-1)).checkpoint_dir is None


def test_a_command_is_shown_without_paths_of_this_machine() -> None:
    command = [
        "/usr/bin/python3",
        "-m",
        "core.spawn",
        "2",
        str(VARIANTS_DIR / "ddp.py"),
        "--data-dir",
        "/a/b",
    ]
    shown = ["python", "-m", "core.spawn", "2", "variants/ddp.py", "--data-dir", "b"]
    assert shown_command([*command, "--record", "/tmp/r.json"]) == shown


def test_a_stored_configuration_has_no_absolute_path() -> None:
    assert stored_config(Config(data_dir="/home/someone/sets"))["data_dir"] == "sets"
    assert stored_config(Config(data_dir="../sets"))["data_dir"] == "../sets"
