import json
import math
import os
from pathlib import Path

import pytest

from bench import records
from bench.files import replace_text
from bench.records import Record, RecordError
from tests.bench.fakes import raw_record


def stored(folder: Path, name: str = "a", status: str = "ok", **changes: object) -> Record:
    record = Record(folder / f"{name}.json", {**raw_record(), "run": {"status": status}, **changes})
    records.write(record)
    return record


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    record = stored(tmp_path)
    assert records.read(record.path) == record
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_json_is_strict(tmp_path: Path) -> None:
    text = records.to_json({"a": [math.nan, math.inf, 1.5], "b": (None, -math.inf)})
    assert json.loads(text) == {"a": [None, None, 1.5], "b": [None, None]}


def test_a_write_that_fails_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = stored(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.write(Record(record.path, {**record.raw, "world_size": 9}))
    assert records.read(record.path).raw["world_size"] == 2
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": 1, "var', "not read"),
        ("[]", "no record"),
        ('{"schema": 0}', "has schema 0, this version reads 1"),
        ('{"schema": 1, "variant": "a"}', "lacks"),
        ('{"schema": 1, "variant": "a", "run": {"status": "ok"}}', "lacks its measurements"),
    ],
)
def test_what_is_no_record_is_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=said):
        records.read(path)
    assert records.read_all(tmp_path)[0] == []
    assert len(records.read_all(tmp_path)[1]) == 1


def test_files_being_written_are_not_read(tmp_path: Path) -> None:
    (tmp_path / ".a.json").write_text("{")
    (tmp_path / ".a.json.12.tmp").write_text("{")
    assert records.read_all(tmp_path) == ([], [])


def damaged(part: str) -> dict:
    """An ok record whose `part`, such as "config.epochs", is taken out or made unusable."""
    raw = {**raw_record(), "run": {"status": "ok"}}
    spoilt = {
        "epochs": {"epochs": []},
        "epochs.test_accuracy": {"epochs": [{}]},
        "precision.compute": {"precision": {"scaler": False}},
        "precision.scaler": {"precision": {"compute": "float32"}},
        "config.warmup_steps": {"config": {"epochs": 1, "global_batch_size": 128}},
        "config.global_batch_size": {"config": {"epochs": 1, "warmup_steps": 0}},
        "ranks.step_ms": raw_record(rank_changes={1: {"step_ms": [1.0, None, 1.0, 1.0]}}),
        "ranks.loss": raw_record(rank_changes={1: {"loss": ["a"] * 4}}),
        "ranks.peak_rss_bytes": raw_record(rank_changes={1: {"peak_rss_bytes": "much"}}),
        "steps": {"steps": 0},
    }
    return {**raw, **spoilt[part]}


@pytest.mark.parametrize(
    "part",
    [
        "epochs",
        "epochs.test_accuracy",
        "precision.compute",
        "precision.scaler",
        "config.warmup_steps",
        "config.global_batch_size",
        "ranks.step_ms",
        "ranks.loss",
        "ranks.peak_rss_bytes",
        "steps",
    ],
)
def test_a_damaged_record_is_told_by_its_part(tmp_path: Path, part: str) -> None:
    records.write(Record(tmp_path / "a.json", damaged(part)))
    found, problems = records.read_all(tmp_path)
    assert found == []
    assert problems == [f"a.json: says ok but lacks its measurements: {part}"]


def test_a_text_is_replaced_through_a_link_and_never_a_pipe(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to(real)
    replace_text(link, "new")
    assert real.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    replace_text(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()
