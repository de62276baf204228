import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.fakes import ROOT

HEAVY = {"torch", "numpy", "pandas", "matplotlib", "rich", "psutil"}


def bench(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run", "--variant"),
        ("run --variant ddpp", "or one of single,"),
        ("run --variant missing/mine.py", "no variant 'missing/mine.py'"),
        ("run --variant ddp --frobnicate 3", "--frobnicate"),
        ("run --variant ddp --world-size 0", "--world-size': takes a whole number from 1 up, got '0'"),
        ("run --variant ddp --world-size 3", "does not divide by 3 ranks; the next that do: 126 and 129"),
        ("run --variant ddp --world-size two", "takes a whole number"),
        ("run --variant ddp --repeats 0", "--repeats"),
        ("run --variant ddp --launcher mpirun", "'torchrun', 'launch', 'spawn'"),
        ("run --variant ddp_spawn --launcher launch", "ddp_spawn starts its own ranks"),
        ("run --variant single --epochs 0", "--epochs"),
        ("run --variant single --epochs", "--epochs"),
        ("run --variant single --lr nan", "--lr"),
        ("run --variant single --lr -1", "--lr"),
        ("run --variant single --momentum 1", "--momentum"),
        ("run --variant single --norm layer", "batch, none"),
        ("run --variant single --model a.b", "package.module:Class"),
        ("run --variant single --record r.json", "--record"),
        ("run --variant single --run-timeout 0", "--run-timeout"),
        ("run --variant single --world-size 1 --train-images 100", "larger than the training set"),
        ("run single --variant ddp", "unexpected extra argument (single)"),
        ("diff single", "no parent"),
        ("diff nothing", "no variant 'nothing'"),
        ("frobnicate", "frobnicate"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(line: str, said: str) -> None:
    done = bench(*line.split())
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


@pytest.mark.parametrize("line", ["--help", "list", "list --json", "run --help", "diff --help", "diff ddp"])
def test_what_must_answer_at_once_imports_nothing_heavy(line: str) -> None:
    code = (
        "import sys\nfrom bench.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n"
        "    print('|', *sorted(sys.modules), file=sys.stderr)\n    raise\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *line.split()], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stderr.split("|")[-1].split()}
    assert not loaded & HEAVY
    assert done.stdout


def test_bare_it_shows_its_help() -> None:
    done = bench()
    shown = done.stdout + done.stderr
    assert done.returncode in (0, 2)
    assert len(shown.splitlines()) > 5
    assert "error" not in shown.splitlines()[0]


def test_a_csv_in_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    output = tmp_path / "nodir" / "x.csv"
    done = bench("export", "--results-dir", str(tmp_path), "--output", str(output))
    assert done.returncode == 2
    assert "non-existent directory" in done.stderr
    assert "None" not in done.stderr


def test_help_names_every_flag_of_the_variants() -> None:
    shown = bench("run", "--help").stdout
    for name in ("--epochs", "--global-batch-size", "--amp-dtype", "--data-dir", "--checkpoint-dir"):
        assert name in shown


def test_list_as_json() -> None:
    entries = {entry["variant"]: entry for entry in json.loads(bench("list", "--json").stdout)}
    assert entries["ddp"]["parent"] == "single"
    assert entries["ddp"]["started_by"] == "torchrun"
    assert entries["dp"]["lines"] == 1
    assert entries["single"]["lines"] is None


def test_list_tells_the_technique() -> None:
    assert "DataParallel" in bench("list").stdout


@pytest.mark.parametrize("option", [["--results-dir", "file/results"], ["--json", "file/rows.json"]])
def test_results_that_could_not_be_stored_are_refused_before_training(
    tmp_path: Path, option: list[str]
) -> None:
    from tests.bench.fakes import harness_command, script

    (tmp_path / "file").write_text("")
    trained = tmp_path / "trained"
    path = script(tmp_path, "mine", f"open({str(trained)!r}, 'w')")
    done = subprocess.run(
        harness_command("run", "--variant", str(path), *option),
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "cannot write to" in done.stderr.splitlines()[-1]
    assert not trained.exists()
