"""Records as CSV."""

import json
from pathlib import Path

import pandas as pd

from bench import export, records
from tests.bench.fakes import raw_record


def write_record(folder: Path, name: str, **changes) -> None:
    raw = raw_record(**changes)
    raw["run"] = {"status": "ok", "repeat": 0}
    (folder / name).write_text(json.dumps(raw))


def test_runs_and_steps_hold_what_the_records_hold(tmp_path):
    folder = tmp_path / "box"
    folder.mkdir()
    write_record(folder, "a.json", world_size=2, steps=4)
    (folder / "broken.json").write_text("{")
    found, problems = records.read_all(tmp_path)
    assert len(problems) == 1
    (run,) = export.runs(found).to_dict("records")
    assert (run["machine"], run["status"], run["record"]) == ("box", "ok", "a.json")
    steps = export.steps(found)
    assert len(steps) == 2 * 4
    for part in found[0].raw["ranks"]:
        own = steps[steps["rank"] == part["rank"]]
        assert own["loss"].tolist() == part["loss"]
        assert own["step"].tolist() == [1, 2, 3, 4]


def test_a_damaged_record_is_left_out_of_the_csv(tmp_path, monkeypatch):
    folder = tmp_path / "box"
    folder.mkdir()
    write_record(folder, "a.json")
    write_record(folder, "b.json", epochs=[])
    lines, problems = export.write(tmp_path, "runs", str(tmp_path / "runs.csv"))
    assert (lines, len(problems)) == (1, 1)
    monkeypatch.setattr("bench.records.missing_measurement", lambda raw: None)  # one we did not foresee
    lines, problems = export.write(tmp_path, "runs", str(tmp_path / "runs.csv"))
    assert (lines, problems) == (1, ["b.json: IndexError list index out of range"])


def test_the_csv_reads_back(tmp_path):
    folder = tmp_path / "box"
    folder.mkdir()
    write_record(folder, "a.json")
    lines, problems = export.write(tmp_path, "runs", str(tmp_path / "runs.csv"))
    assert (lines, problems) == (1, [])
    assert pd.read_csv(tmp_path / "runs.csv")["machine"].tolist() == ["box"]
