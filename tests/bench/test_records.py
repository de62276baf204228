import json
import math
import os
from pathlib import Path

import pytest

from bench import records
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


def test_the_latest_are_those_of_one_command(tmp_path: Path) -> None:
    runs = [("a", "x", 1), ("b", "y", 2), ("c", "y", 3)]
    for name, command, hour in runs:
        stored(
            tmp_path,
            name,
            started_at=f"2026-01-01T0{hour}:00:00+00:00",
            run={"status": "ok", "command_id": command},
        )
    newest = records.latest(records.read_all(tmp_path)[0])
    assert [record.path.stem for record in newest["fake"]] == ["b", "c"]
