import errno
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
    return Runner(cfg or Config(), ENVIRONMENT, folder, Stop(), 60, Reporter(quiet=True), repeats)


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
    at_work._yardsticks["single"] = None
    at_work.reporter = Reporter()
    (record,) = at_work.run_all([own(script(tmp_path, "mine"))])
    assert record.path.parent == rescue
    assert records.read(record.path).ok
    assert f"No space left on device): kept in {record.path}" in capsys.readouterr().err


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
