"""REPORT.md: what it says follows from the records, and it is the same each time."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner

from bench import parity
from bench.commands.report import report
from bench.derive import PARITY_CLASSES, worst_parity
from bench.plots import FIGURES
from bench.report.build import Picture, Report
from bench.report.compare import chance, differs
from bench.report.machine import CLASSES
from tests.bench import synthetic as made

ROOT = Path(__file__).parents[2]
LOCAL_NORM = {"class": "local batch norm", "max_abs_diff": 0.016, "tolerance": None, "reason": None}
SAME = {"class": "identical", "max_abs_diff": 0.0, "tolerance": 0.0, "reason": None}


@pytest.fixture(scope="module")
def drawn_once(tmp_path_factory) -> Path:
    """A folder with results, their figures and the report: drawing takes longer than all else here."""
    folder = tmp_path_factory.mktemp("drawn")
    made.write(folder / "results" / "box", *seven())
    result = run("--results-dir", str(folder / "results"), "--output", str(folder / "REPORT.md"))
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def drawn(drawn_once, tmp_path) -> str:
    """The text of that report; the test stands in a copy of its folder."""
    shutil.copytree(drawn_once, tmp_path, dirs_exist_ok=True)
    return (tmp_path / "REPORT.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_figures(monkeypatch):
    monkeypatch.setattr(Picture, "draw", lambda picture: None)


def run(*arguments: str):
    return CliRunner().invoke(report, arguments, catch_exceptions=False)


def text(*raws: dict, machine: str = "box") -> str:
    """The report on these records."""
    made.write(Path("results", machine), *raws)
    result = run()
    assert result.exit_code == 0, result.output
    return Path("REPORT.md").read_text(encoding="utf-8")


def row(report: str, label: str, heading: str = "Variant") -> dict[str, str]:
    """The cells of the row of `label` in the first table that has the column `heading`, by column."""
    lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in report.splitlines()]
    head = next(at for at, cells in enumerate(lines) if heading in cells)
    found = next(cells for cells in lines[head:] if cells and cells[0] == f"`{label}`")
    return dict(zip(lines[head], found, strict=True))


def seven() -> list[dict]:
    half = {"compute": "bfloat16"}
    return [
        *made.repeats("single", 20, 21, 22),
        *made.repeats("dp", 20, 21, 22.5, wrapper="DataParallel", run={"parity": SAME}),
        *made.repeats("single_amp", 10, 11, 12, precision=half, run={"parity": LOCAL_NORM}),
        *made.repeats("ddp", 30, 31, 32, ranks=2, shift=1e-5, run={"parity": LOCAL_NORM}),
        *made.repeats("ddp_amp", 15, 15.5, 16, ranks=2, precision=half, run={"parity": LOCAL_NORM}),
        *made.repeats("ddp_spawn", 30.5, 31, 32, ranks=2, run={"parity": LOCAL_NORM}),
        *made.repeats("ddp_syncbn", 40, 41, 42, ranks=2, batch_norms=["AllReduceBatchNorm"]),
    ]


def test_numbers_are_those_of_the_records(no_figures):
    raws = seven()
    found = text(*raws)
    rates = {}
    for raw in raws:  # anew, by nothing of bench
        steady = [sum(part["step_ms"][20:]) for part in raw["ranks"]]
        rates.setdefault(raw["variant"], []).append(40 * 128 / max(steady) * 1000)
    for variant, each in rates.items():
        cells = row(found, variant)
        assert cells["images/s"] == f"{median(each):,.0f}"
        assert cells["least to most"] == f"{min(each):,.0f} to {max(each):,.0f}"
    single, ddp = rates["single"], rates["ddp"]
    low, high = min(ddp) / max(single), max(ddp) / min(single)
    assert row(found, "ddp")["vs single"] == f"{median(ddp) / median(single):.2f}x ({low:.2f} to {high:.2f})"
    memory = row(found, "ddp", "PSS of all ranks at the end, MiB")
    assert list(memory.values())[1:] == ["610", "800"]
    training = row(found, "ddp", "Final loss")
    last_50 = [sum(part["loss"][at] for part in raws[9]["ranks"]) / 2 for at in range(10, 60)]
    assert training["Final loss"] == f"{sum(last_50) / 50:.4f}"
    assert (training["Loss parity"], training["largest difference"]) == ("local batch norm", "1.6e-02")


def test_the_same_records_make_the_same_files(drawn):
    figures = {path: path.read_bytes() for path in Path("results").rglob("figures/*")}
    assert {path.name for path in figures} == {f"{name}.{end}" for name in FIGURES for end in ("png", "svg")}
    for path in figures:
        path.unlink()
    assert text() == drawn
    assert {path: path.read_bytes() for path in figures} == figures


def test_check_is_quiet_when_all_is_up_to_date_and_names_what_is_not(drawn):
    assert run("--check").exit_code == 0
    Path("REPORT.md").write_bytes(drawn.replace("\n", "\r\n").encode())  # as a checkout on Windows has it
    assert run("--check").exit_code == 0
    figures = Path("results/box/figures")
    (figures / "loss.svg").unlink()
    (figures / "memory.png").write_bytes((figures / "steps.png").read_bytes())
    Path("REPORT.md").write_text(drawn + "by hand\n", encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in Path(".").rglob("*")}
    result = run("--check")
    assert result.exit_code == 1
    for name in ("REPORT.md is stale", "loss.png was drawn from other data", "memory.png was drawn"):
        assert name in result.output
    assert "throughput" not in result.output
    assert {path: path.stat().st_mtime_ns for path in Path(".").rglob("*")} == before


def test_check_finds_a_new_record(drawn):
    later = {"command_id": "c2", "launched_at": "2027"}
    made.write(Path("results/box"), *made.repeats("single", 18, 19, 20, run=later))
    result = run("--check")
    assert result.exit_code == 1
    assert "REPORT.md is stale: it differs from line" in result.output
    assert "throughput.png was drawn from other data" in result.output


def test_check_without_a_report():
    result = run("--check")
    assert result.exit_code == 1 and "REPORT.md is missing" in result.output


def test_without_results_it_says_what_to_run(no_figures):
    found = text()
    assert "python -m bench run --variant all --repeats 3" in found
    assert "| `ddp_amp`" in found  # what a method costs in lines is known all the same
    assert run("--check").exit_code == 0


def test_a_file_made_by_hand_is_not_overwritten(no_figures):
    Path("REPORT.md").write_text("mine\n")
    result = run()
    assert result.exit_code == 2 and "--output" in result.output
    assert Path("REPORT.md").read_text() == "mine\n"


def test_a_missing_folder_is_a_mistake_of_the_users():
    result = run("--results-dir", "nowhere")
    assert result.exit_code == 2 and "nowhere" in result.output


def test_failed_rows_have_their_reason_and_no_number(no_figures):
    reason = "RuntimeError: <b>out|of</b> `memory`\n| x | y |"
    found = text(
        *made.repeats("single", 20, 21),
        made.failed("ddp", reason, log_tail=["```", "</details>", "\x1b[31mTraceback"]),
        made.failed("ddp_amp", "needs 2 GPUs", status="skipped"),
    )
    cells = row(found, "ddp")
    assert cells["Status"].startswith("failed: RuntimeError: &lt;b&gt;out\\|of")
    assert set(list(cells.values())[3:]) == {"–"}  # noqa: RUF001
    assert row(found, "ddp_amp")["Status"] == "skipped: needs 2 GPUs"
    assert "\x1b" not in found and "<b>out" not in found
    assert "Not ranked: `ddp_amp`, skipped: needs 2 GPUs." in found


def test_foreign_text_stays_text_when_rendered(no_figures):
    """By the renderer that rich brings: no HTML but ours, no table row too many, no link but to our files."""
    markdown_it = pytest.importorskip("markdown_it")
    nasty = "<script>x</script> | [a](http://e.x) ![b](c) `d\n# head\n| 1 | 2 |\n</details>\n```\n- item"
    found = text(
        *made.repeats("single", 20, 21, environment={"cpu": nasty, "os": nasty}, run={"commit": nasty}),
        made.failed("ddp", nasty, log_tail=nasty.splitlines()),
        made.failed(nasty.replace("/", ""), "x"),
        machine="box `|` <b>",
    )
    tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(found)
    flat = [part for token in tokens for part in (token, *(token.children or []))]
    tags = {re.match(r"</?\w+|<!--", token.content)[0] for token in flat if token.type.startswith("html")}
    assert tags <= {"<!--", "<details", "</details"}
    targets = [token.attrs["href"] for token in flat if token.type == "link_open"]
    assert targets and all(target.startswith("results/box") for target in targets)
    assert [token for token in flat if token.type == "heading_open" and token.tag == "h1"][1:] == []
    unfenced = re.sub(r"(?ms)^(`{3,})\w+\n.*?^\1$", "", found)
    assert sum(token.type == "tr_open" for token in flat) == len(re.findall(r"(?m)^\|(?! -)", unfenced))


def test_failures_alone_make_a_report(no_figures):
    found = text(made.failed("single", "no", ranks=1), made.failed("ddp", "no"))
    assert "No recommendation: there is no run of `single`" in found
    assert "Nothing ran to its end." in found and "![" not in found


def test_one_failed_repeat_fails_the_row_and_keeps_it_out_of_the_ranking(no_figures):
    found = text(
        *made.repeats("single", 20, 21, 22),
        *made.repeats("ddp", 5, 5.1, ranks=2),
        made.failed("ddp", "killed", repeat=2),
    )
    assert row(found, "ddp")["Status"] == "failed (1 of 3 repeats): killed"
    assert "Not ranked: `ddp`, failed" in found
    assert "**Fastest of all: `ddp`" not in found


def test_machines_are_never_in_one_ranking(no_figures):
    made.write(Path("results/fast"), *made.repeats("single", 1, 1.1, environment={"cpu": "Fast CPU"}))
    found = text(*made.repeats("single", 20, 21), *made.repeats("ddp", 30, 31, ranks=2), machine="slow")
    fast, slow = found.split("## Test CPU, 2 cores, no GPU")[:2]
    assert "## Fast CPU, 2 cores, no GPU (`fast`)" in fast and "`ddp`" not in fast
    assert row(slow, "ddp")["vs single"].startswith("0.6")
    assert "Speed-up on Fast CPU" in found and "| Processor " in found
    pictures = Report(Path("results"), Path("REPORT.md")).pictures
    shown = {picture.machine.folder.name: picture for picture in pictures if picture.name == "throughput"}
    assert [len(shown[name].data["rows"]) for name in ("fast", "slow")] == [1, 2]


def test_other_flags_are_another_job(no_figures):
    small = {**made.CONFIG, "train_images": 3000}
    found = text(
        *made.repeats("single", 20, 21),
        *made.repeats("ddp", 30, 31, ranks=2),
        *made.repeats("single", 3, 3, config=small, run={"command_id": "c2", "launched_at": "2027"}),
    )
    assert row(found, "single")["images/s"] < "7,000"
    assert "--train-images 3000" in found


def test_a_pass_through_and_a_stand_in_are_marked_and_not_ranked(no_figures):
    found = text(*seven())
    assert "Not ranked: `dp`, a pass-through here" in found
    assert row(found, "ddp_syncbn")["Origin"] == "emulated"
    assert "Not ranked: `ddp_syncbn`, emulated here" in found
    assert row(found, "ddp", "Lines changed")["Parent"] == "`single`"


def test_no_difference_is_claimed_within_the_spread(no_figures):
    found = text(*seven())
    assert "**Fastest of all: `single_amp`" in found
    assert row(found, "ddp_spawn", "Lines changed")["Speed-up on Test CPU, 2 cores, no GPU"].endswith(
        "no difference beyond the spread"
    )
    assert "`ddp` is 0.6" in found and "**Slower than `single`**: `ddp`" in found
    assert "Probably because all ranks share the 2 cores" in found
    assert "(one seed: another may turn that difference round)" in found


def test_one_repeat_is_no_ranking(no_figures):
    found = text(made.record("single", 20), made.record("ddp", 5, ranks=2))
    assert "**No ranking yet**" in found and "Fastest" not in found
    assert "spread unknown: one repeat" in found


def test_unsteady_numbers_are_said_first(no_figures):
    found = text(
        *made.repeats("single", 20, 40, run={"load_average": [9.0, 1.0, 1.0]}),
        *made.repeats("ddp", 2, 2.1, ranks=2, run={"parity": LOCAL_NORM}),
    )
    line = next(line for line in found.splitlines() if line.startswith("- **Measure again"))
    assert "load average of up to 9.0 on 2 cores" in line and "`single` 6" in line
    assert "beyond the number of ranks (`ddp`" in line


def test_ranges_that_overlap_are_not_different():
    assert differs([1, 2], [3, 4]) and differs([3, 4], [1, 2])
    assert differs([1, 3], [2, 4]) is False
    assert differs([1], [2, 3]) is None
    assert chance(3, 3) == pytest.approx(0.1)


def test_rows_of_other_code_are_told(no_figures):
    found = text(*made.repeats("single", 20, 21), *made.repeats("ddp", 30, 31, ranks=2, run={"dirty": True}))
    assert "**Not all rows were made alike.** Commit: 0123456789ab (`single`)" in found
    assert "0123456789ab with changes" in found


def test_another_clock_is_not_compared(no_figures):
    found = text(*made.repeats("single", 20, 21), *made.repeats("ddp", 5, 6, ranks=2, timing_method="other"))
    assert row(found, "ddp")["vs single"] == "unavailable: timed in another way"


def test_another_host_is_told_from_another_clock(no_figures):
    elsewhere = {**made.ENVIRONMENT, "host": "89abcdef"}
    found = text(*made.repeats("single", 20, 21), *made.repeats("ddp", 5, 6, ranks=2, environment=elsewhere))
    assert row(found, "ddp")["vs single"] == "unavailable: measured on another host"
    assert "Not ranked: `ddp`, measured on another host." in found


def test_one_rank_of_a_variant_is_a_row_of_its_own(no_figures):
    found = text(
        *made.repeats("single", 20, 21),
        *made.repeats("ddp", 22, 22, ranks=1, run={"command_id": "c2"}),
        *made.repeats("ddp", 9, 9, ranks=2, run={"command_id": "c3"}),
    )
    assert row(found, "ddp (1 rank)")["vs single"].startswith("0.9")
    assert row(found, "ddp (2 ranks)")["vs own 1 rank"].startswith("2.")


def test_an_interrupted_command_does_not_hide_the_one_before(no_figures):
    later = {"command_id": "c2", "launched_at": "2027"}
    found = text(
        *made.repeats("single", 20, 21),
        made.failed("single", "Ctrl-C", status="interrupted", ranks=1, **later),
    )
    assert row(found, "single")["Status"] == "ok"


def test_broken_files_are_named_and_left_out(no_figures):
    box = Path("results/box")
    made.write(box, *made.repeats("single", 20, 21))
    whole = (box / "single-0000.json").read_text()
    (box / "cut.json").write_text(whole[:-40])
    (box / "foreign.json").write_text('{"some": "thing"}')
    (box / "old.json").write_text(whole.replace('"schema": 1', '"schema": 0'))
    (box / "short.json").write_text(whole.replace('"steps": 60', '"steps": 61'))
    (box / "empty.json").write_text(whole.replace('"epochs": [', '"epochs": [], "x": ['))
    (box / "list.json").write_text("[1, 2]")
    (box / "nan.json").write_bytes(b"\xff\xfe")
    Path("results/loose.json").write_text(whole)
    found = text()
    for name in ("cut", "foreign", "old", "short", "empty", "list", "nan", "loose"):
        assert f"{name}.json" in found.split("## ")[0]
        assert f"{name}.json" in run("--check").output
    assert "2 of each variant" in found


def test_every_variant_has_its_diff_folded(no_figures):
    found = text(*seven())
    for name, budget in (("dp", 2), ("ddp", 25), ("ddp_amp", 12), ("ddp_syncbn", 2), ("ddp_spawn", 14)):
        lines = int(row(found, name, "Lines changed")["Lines changed"])
        assert 0 < lines <= budget
        assert re.search(rf"<summary><b>{name}</b> against \w+: {lines} lines? changed</summary>", found)
    assert "+    model = DDP(model)" in found
    assert found.count("<details>") == found.count("</details>")


def test_links_lead_to_files(drawn):
    targets = re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", drawn, flags=re.DOTALL))
    assert len(targets) > 20
    assert all(Path(target).is_file() for target in targets)


def report_without(*packages: str) -> str:
    """Run `report` where these cannot be imported; gives what it printed on stderr."""
    code = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:])); sys.argv[1:] = []\n"
    code += "from bench.commands.report import report; report()"
    done = subprocess.run(
        [sys.executable, "-c", code, *packages], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_without_matplotlib_there_is_all_but_the_plots():
    made.write(Path("results/box"), *seven())
    assert "matplotlib cannot be imported" in report_without("matplotlib")
    found = Path("REPORT.md").read_text(encoding="utf-8")
    assert row(found, "single")["Status"] == "ok"
    assert "![" not in found and found.count("no plot, matplotlib cannot be imported") == 4
    assert run("--check").exit_code == 1


def test_neither_pandas_nor_tabulate_is_needed():
    made.write(Path("results/box"), *made.repeats("single", 20, 21))
    assert not report_without("pandas", "tabulate", "torch")
    assert Path("REPORT.md").read_text(encoding="utf-8").count("![") == 4


def test_figures_that_are_there_are_shown_without_matplotlib_too(drawn):
    assert not report_without("matplotlib")
    assert Path("REPORT.md").read_text(encoding="utf-8") == drawn


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from bench.commands import report as report_command\n"
        "assert not {'numpy', 'matplotlib', 'pandas', 'torch', 'bench.report.build'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, check=True)


def test_every_class_of_parity_is_explained():
    listed = re.search(r"class is one of\n(.*?)\n    tolerance:", parity.parity.__doc__, re.DOTALL)[1]
    known = re.findall(r"(?m)^ {8}(\S+(?: \S+)*)  ", listed)
    assert known == [kind for kind in CLASSES if kind in known]
    assert list(CLASSES) == list(PARITY_CLASSES)


def test_one_row_with_one_repeat_does_not_end_the_ranking(no_figures):
    found = text(*seven(), made.record("ddp_compile", 5, ranks=2, run={"parity": SAME}))
    assert "No ranking yet" not in found and "**Fastest of all: `single_amp`" in found
    assert "Not ranked: `ddp_compile`, with one repeat" in found


def test_single_with_one_repeat_is_no_ranking(no_figures):
    found = text(made.record("single", 20), *made.repeats("ddp", 5, 6, ranks=2))
    assert "**No ranking yet**: one good repeat of `single` is all" in found


def test_single_with_a_failed_repeat_and_nothing_that_trains_alike(no_figures):
    found = text(
        *made.repeats("single", 20, 21, 22),
        made.failed("single", "killed", ranks=1, repeat=3),
        *made.repeats("ddp", 5, 5.1, ranks=2, run={"parity": LOCAL_NORM}),
    )
    assert "**None of the ranked rows has the same training as `single`.**" in found
    assert "**Fastest of all: `ddp`" in found and "Not ranked: `single`, failed (1 of 4 repeats)" in found


def test_nothing_can_be_ranked(no_figures):
    found = text(*made.repeats("single", 20, 21, 22), made.failed("single", "killed", ranks=1, repeat=3))
    assert "**No ranking**: no row here" in found


def test_the_fastest_of_all_names_those_it_is_not_told_apart_from(no_figures):
    half = {"compute": "bfloat16"}
    found = text(
        *made.repeats("single", 20, 21),
        *made.repeats("single_amp", 10, 12, precision=half, run={"parity": LOCAL_NORM}),
        *made.repeats("ddp_amp", 11, 13, ranks=2, precision=half, run={"parity": LOCAL_NORM}),
    )
    line = next(line for line in found.splitlines() if "Fastest of all" in line)
    assert "Not told apart from `ddp_amp`" in line
    alike = [
        *made.repeats("ddp", 9, 12.5, ranks=2, run={"parity": SAME}),
        *made.repeats("ddp_spawn", 10, 13, ranks=2, run={"parity": SAME}),
    ]
    found = text(*alike)
    assert "It is the fastest of all, too. Not told apart from it, with another training: `" in found


def test_a_run_made_to_compare_others_with_is_no_repeat(no_figures):
    only = made.record("ddp", 5, ranks=2, run={"order": -1})
    found = text(*made.repeats("single", 20, 21), *made.repeats("ddp", 20, 21, ranks=2), only)
    assert "Repeats: 2 of each variant;" in found


def test_a_later_single_repeat_does_not_replace_three(no_figures):
    later = {"command_id": "c2", "launched_at": "2027"}
    one = made.record("single", 10, run=later)
    found = text(*made.repeats("single", 20, 21, 22), one)
    assert row(found, "single")["least to most"] != "one repeat"
    assert "of those made with the same code, commit, packages and computer as the newest" in found


@pytest.mark.parametrize(
    "change",
    [
        {"run": {"commit": "f" * 40}},
        {"run": {"code": "1" * 16}},
        {"run": {"dirty": True}},
        {"environment": {"packages": {"torch": "3.0"}}},
    ],
)
def test_a_later_repeat_of_other_code_does(no_figures, change):
    run = {"command_id": "c2", "launched_at": "2027", **change.get("run", {})}
    one = made.record("single", 10, **{**change, "run": run})
    assert row(text(*made.repeats("single", 20, 21, 22), one), "single")["least to most"] == "one repeat"


def test_a_later_failure_is_not_hidden_by_good_repeats(no_figures):
    bad = made.failed("single", "no", ranks=1, command_id="c2", launched_at="2027")
    found = text(*made.repeats("single", 20, 21, 22), bad)
    assert row(found, "single")["Status"] == "failed: no"


def test_a_row_is_the_median_of_its_repeats_and_the_worst_parity(no_figures):
    kinds = [SAME, {**SAME, "class": "never heard of", "max_abs_diff": 0.5}, LOCAL_NORM]
    raws = [
        made.record("ddp", 20, ranks=2, shift=shift, run={"repeat": at, "parity": kind})
        for at, (shift, kind) in enumerate(zip((0, 3e-2, 1e-2), kinds, strict=True))
    ]
    for raw, accuracy in zip(raws, (0.5, 0.7, 0.9), strict=True):
        raw["epochs"][-1]["test_accuracy"] = accuracy
    middle = sum(sum(part["loss"][10:]) for part in raws[2]["ranks"]) / 100
    found = row(text(*made.repeats("single", 20, 21, 22), *raws), "ddp", "Final loss")
    assert (found["Final loss"], found["Test accuracy"]) == (f"{middle:.4f}", "70.00%")
    assert (found["Loss parity"], found["largest difference"]) == ("never heard of", "5.0e-01")


def test_parity_classes_rank_from_the_best_to_the_worst():
    found = [{"class": kind} for kind in ("rounding", "undecided", "unheard", "another training")]
    assert worst_parity(found)["class"] == "undecided"
    assert worst_parity(found[:1] + found[2:])["class"] == "unheard"
    assert worst_parity([None, None]) is None and worst_parity([None, found[0]]) is found[0]


def test_two_rounds_there_and_back_are_interleaved(no_figures):
    names = ["single", "ddp", "dp", "dp", "ddp", "single"]
    raws = [
        made.record(
            name, 20, ranks=1, run={"repeat": at // 3, "order": at, "launched_at": f"2026-01-02T03:0{at}:00"}
        )
        for at, name in enumerate(names)
    ]
    assert "Repeats: 2 of each variant; interleaved" in text(*raws)


def test_repeats_in_a_row_are_not(no_figures):
    raws = [
        made.record(name, 20, ranks=1, run={"repeat": at % 2, "order": at})
        for at, name in enumerate(["single", "single", "ddp", "ddp"])
    ]
    assert "2 of each variant; the repeats of a variant one after the other" in text(*raws)


def test_it_says_how_many_comparisons_were_made_and_how_many_differ_by_chance(no_figures):
    found = text(
        *made.repeats("single", 20, 21),
        *made.repeats("ddp", 30, 31, ranks=2),
        *made.repeats("ddp_amp", 30, 32, ranks=2),
        made.record("dp", 20),
    )
    # ddp and ddp_amp against single, ddp_amp against ddp; dp has one repeat. A third of each by chance.
    assert "Here 3 comparisons were made" in found and "about 1.0 of them" in found


def test_probes_are_in_what_is_said_of_training_only():
    probe = made.repeats("single_reordered", 1, 1.1, shift=1e-6, run={"parity": SAME})
    made.write(Path("results/box"), *made.repeats("single", 20, 21), *probe)
    made_of = Report(Path("results"), Path("REPORT.md"))
    for picture in made_of.pictures:
        assert ("single_reordered" in str(picture.data)) == (picture.name == "loss"), picture.name
    tables = made_of.text({}).split("## What each method costs")[0]
    assert [line.startswith("| `single_reordered`") for line in tables.splitlines()].count(True) == 1
    assert row(tables, "single_reordered", "Final loss") and "Fastest of all" not in tables


def test_compile_seconds_and_what_each_rank_holds(no_figures):
    raws = made.repeats("ddp_compile", 20, 21, ranks=2)
    for raw in raws:
        for rank, part in enumerate(raw["ranks"]):
            part.update(compile_s=1.5 + rank, weight_bytes=2048, optimizer_bytes=3072 * (rank + 1))
    found = text(*made.repeats("single", 20, 21), *raws)
    cells = row(found, "ddp_compile", "Optimizer state per rank, KiB")
    assert cells["Optimizer state per rank, KiB"] == "3, 6" and cells["Weights per rank, KiB"] == "2"
    assert row(found, "single", "Weights per rank, KiB")["Weights per rank, KiB"] == "–"  # noqa: RUF001
    assert "Seconds in torch.compile" in found and "`ddp_compile` 2.5." in found


def test_it_says_that_nothing_ran_on_a_gpu(no_figures):
    line = "GPUs: unavailable: no machine with a GPU has results here (`make gpu-check` makes them)"
    found = text(*made.repeats("single", 20, 21), made.failed("ddp", "needs 2 GPUs", status="skipped"))
    assert line in found.split("## What did not run here")[1].split("## ")[0]
    assert "- `ddp` on Test CPU, 2 cores, no GPU: skipped: needs 2 GPUs." in found
    assert line not in text(*made.repeats("dp", 20, 21, device="cuda:0"))


def test_other_code_of_the_core_is_told(no_figures):
    found = text(*made.repeats("single", 20, 21), *made.repeats("ddp", 30, 31, ranks=2, run={"code": "ab12"}))
    assert "Code of the core: None (`single`) and ab12 (`ddp`)" in found


def test_flags_are_whole_and_real(no_figures):
    long = {**made.CONFIG, "train_images": 3000, "model": "package." + "very_" * 50 + "long:Net"}
    found = text(
        *made.repeats("single", 20, 21, config=long),
        *made.repeats("ddp", 30, 31, ranks=2, config=long),
        *made.repeats("single", 20, 21, run={"command_id": "c2"}),
    )
    assert "None</code>" not in found and "without --train-images" in found
    flags = next(line for line in found.splitlines() if "Flags of every run" in line)
    assert long["model"] in flags and "--dataset mnist" in flags


MARKED = "mine\n<!-- variants: begin -->\n<!-- variants: end -->\n"


def test_only_a_readme_with_markers_is_touched_and_only_when_it_changes(no_figures):
    made.write(Path("results/box"), *made.repeats("single", 20, 21))
    readme = Path("docs/README.md")
    readme.parent.mkdir()
    for content in (b"by hand\r\n", b"\xff\xfe"):
        readme.write_bytes(content)
        before = readme.stat()
        assert run("--output", "docs/X.md").exit_code == 0
        assert readme.read_bytes() == content and readme.stat().st_ino == before.st_ino
    readme.write_text(MARKED)
    run("--output", "docs/X.md")
    assert "`single`" in readme.read_text()
    inode = readme.stat().st_ino
    run("--output", "docs/X.md")
    assert readme.stat().st_ino == inode
