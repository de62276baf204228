"""The figures: they show the records and nothing else, are the same each time, and need no display."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from bench.plots import FIGURES, files, style, throughput
from bench.plots.loss import _spread
from bench.report.collect import Job, machines
from tests.bench import synthetic as made

ROOT = Path(__file__).parents[2]


def job_of(folder: Path, *raws: dict) -> Job:
    made.write(folder / "box", *raws)
    found, problems = machines(folder, ["single", "dp", "ddp"])
    assert not problems
    return found[0].main


@pytest.fixture
def job(tmp_path):
    return job_of(
        tmp_path,
        *made.repeats("single", 20, 21, 22),
        *made.repeats("ddp", 30, 31, 29, ranks=2, shift=1e-4),
        made.failed("ddp_amp", "out of memory"),
    )


def draw(name: str, data: dict):
    style.load()
    with style.style():
        figure = FIGURES[name].draw(data)
        figure.canvas.draw()
    return figure


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_each_time_and_says_which_data_it_shows(job, tmp_path, name):
    data = FIGURES[name].data(job)
    digest = files.digest(data)
    for folder in ("a", "b"):
        files.save(draw(name, data), tmp_path / folder / f"{name}.png", digest)
    for suffix in (".png", ".svg"):
        one, other = ((tmp_path / folder / name).with_suffix(suffix).read_bytes() for folder in "ab")
        assert one == other
        assert files.drawn_from((tmp_path / "a" / name).with_suffix(suffix))["data"] == digest
    assert files.is_drawn_from(tmp_path / "a" / f"{name}.png", digest)
    assert not files.is_drawn_from(tmp_path / "a" / f"{name}.png", files.digest("other"))
    assert b"<dc:date>" not in (tmp_path / "a" / f"{name}.svg").read_bytes()


@pytest.mark.parametrize("name", FIGURES)
def test_the_data_of_a_figure_are_plain_and_follow_the_records(job, tmp_path, name):
    data = FIGURES[name].data(job)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    other = job_of(
        tmp_path / "other",
        *made.repeats("single", 20, 21, 23, ranks=1),
        made.record("ddp", 30, ranks=3, shift=2e-4),
    )
    assert files.digest(FIGURES[name].data(other)) != files.digest(data)


def test_the_last_bits_of_a_float_do_not_make_a_figure_stale():
    assert files.digest([0.1 + 0.2]) == files.digest([0.3])
    assert files.digest([0.30001]) != files.digest([0.3])


def test_a_row_without_numbers_has_its_reason_and_no_bar(job):
    axes = draw("throughput", throughput.data(job)).axes[0]
    assert [round(patch.get_width()) for patch in axes.patches] == [
        round(np.median(entry.rates)) for entry in (job.entries[0], job.entries[1])
    ]
    assert any("failed: out of memory" in text.get_text() for text in axes.texts)


def test_nothing_is_drawn_of_failures_alone(tmp_path):
    job = job_of(tmp_path, made.failed("ddp", "no"), made.failed("single", "no", ranks=1))
    assert [module.data(job) for module in FIGURES.values()] == [None] * len(FIGURES)


def test_equal_curves_are_one_line_with_both_names(tmp_path):
    job = job_of(tmp_path, made.record("single"), made.record("dp"), made.record("ddp", shift=1e-3))
    data = FIGURES["loss"].data(job)
    assert [group["labels"] for group in data["groups"]] == [["single", "dp"], ["ddp"]]
    assert data["groups"][0]["difference"] is None
    # The mean over the last 15 of 60 steps of 1e-3 * step.
    assert data["groups"][1]["difference"][-1] == pytest.approx(1e-3 * np.arange(45, 60).mean())


def test_without_a_reference_the_curves_have_their_names_above(tmp_path):
    job = job_of(
        tmp_path, made.failed("single", "no", ranks=1), made.record("ddp"), made.record("dp", shift=1)
    )
    upper, lower = draw("loss", FIGURES["loss"].data(job)).axes
    assert {text.get_text() for text in upper.texts} - {""} == {"ddp", "dp"}
    assert "unavailable: single did not run to its end" in {text.get_text() for text in lower.texts}


@pytest.mark.parametrize("name", FIGURES)
def test_runs_of_a_step_or_two(tmp_path, name):
    job = job_of(tmp_path, made.record("single", steps=2), made.record("ddp", steps=1, ranks=2, shift=1e-3))
    assert draw(name, FIGURES[name].data(job)).axes


def test_gpu_memory_has_a_panel_of_its_own(tmp_path):
    raw = made.record("single")
    raw["ranks"][0].update(peak_allocated_bytes=30 * 2**20, peak_reserved_bytes=50 * 2**20)
    data = FIGURES["memory"].data(job_of(tmp_path, raw, made.record("ddp", ranks=2)))
    assert [row["reserved_mib"] for row in data["rows"]] == [50, None]
    _, gpu = draw("memory", data).axes
    assert [round(patch.get_width()) for patch in gpu.patches] == [50, 30]
    assert any("ran on the CPU" in text.get_text() for text in gpu.texts)


@pytest.mark.parametrize("name", FIGURES)
def test_names_of_twenty_variants_do_not_lie_over_each_other(tmp_path, name):
    raws = [
        made.record(f"variant_{at:02}", 20 + at, ranks=1 + at % 2, shift=at * 1e-5) for at in range(1, 20)
    ]
    figure = draw(name, FIGURES[name].data(job_of(tmp_path, made.record("single"), *raws)))
    axes = figure.axes[-1] if name == "loss" else figure.axes[0]
    texts = [text for text in (axes.texts if name == "loss" else axes.get_yticklabels()) if text.get_text()]
    boxes = sorted((Text.get_window_extent(text) for text in texts), key=lambda box: box.y0)  # without arrows
    assert len(boxes) >= 19
    assert all(lower.y1 <= upper.y0 + 2 for lower, upper in pairwise(boxes))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_names_of_many_equal_curves_do_not_lie_over_those_of_others(tmp_path):
    """As with the 22 variants of the project: six equal curves amid a dozen others."""
    raws = [made.record(f"equal_{at}", shift=1e-4) for at in range(6)]
    raws += [made.record(f"variant_{at:02}", shift=(0.5 + at / 12) * 1e-4) for at in range(14)]
    data = FIGURES["loss"].data(job_of(tmp_path, made.record("single"), *raws))
    axes = draw("loss", data).axes[-1]
    assert "equal_0 and 6 more" in {text.get_text() for text in axes.texts}  # variant_06 is the seventh
    boxes = sorted((Text.get_window_extent(t) for t in axes.texts if t.get_text()), key=lambda box: box.y0)
    assert len(boxes) == 14 and all(lower.y1 <= upper.y0 for lower, upper in pairwise(boxes))
    caption = FIGURES["loss"].caption(data)
    assert all(f"`equal_{at}`" in caption for at in range(6)) and "Not in the figure" not in caption


def test_a_run_with_other_steps_is_left_out_of_the_loss_and_not_cut(tmp_path):
    job = job_of(tmp_path, made.record("single"), made.record("ddp"), made.record("dp", steps=30))
    data = FIGURES["loss"].data(job)
    assert data["steps"][-1] == 60
    assert [group["labels"] for group in data["groups"]] == [["single", "ddp"]]
    assert "Not in the figure, as they made other steps than `single`: `dp` (30 steps)." in FIGURES[
        "loss"
    ].caption(data)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_half_a_figure_is_not_taken_for_it(job, tmp_path, suffix):
    path = tmp_path / "steps.png"
    files.save(draw("steps", FIGURES["steps"].data(job)), path, "0" * 64)
    assert files.is_drawn_from(path, "0" * 64)
    assert sorted(each.name for each in tmp_path.glob("*steps*")) == ["steps.png", "steps.svg"]
    half = path.with_suffix(suffix)
    half.write_bytes(half.read_bytes()[:-20])
    assert not files.is_drawn_from(path, "0" * 64)


def test_a_figure_that_cannot_be_saved_leaves_the_one_before(job, tmp_path, monkeypatch):
    path = tmp_path / "steps.png"
    files.save(draw("steps", FIGURES["steps"].data(job)), path, "0" * 64)
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        files.save(draw("steps", FIGURES["steps"].data(job)), path, "1" * 64)
    assert path.read_bytes() == before
    assert not [each for each in tmp_path.iterdir() if each.name.endswith(".tmp")]


def test_labels_moved_apart_keep_their_order():
    places = np.array([0.5, 0.51, 0.99, 0.98, 0.1])
    spread = _spread(places, 0.1)
    assert list(np.argsort(spread)) == list(np.argsort(places))
    assert np.diff(np.sort(spread)).min() >= 0.1 - 1e-12
    assert spread.max() <= 1.0


@pytest.mark.parametrize("backend", ["TkAgg", "module://matplotlib_inline.backend_inline"])
def test_figures_are_drawn_without_a_display_whatever_backend_is_set(tmp_path, backend):
    made.write(tmp_path / "results" / "box", made.record("single"))
    environment = {
        k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")
    }
    environment |= {"MPLBACKEND": backend, "PYTHONPATH": str(ROOT)}
    code = "from bench.commands.report import report; report()"
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    for name in FIGURES:
        assert (tmp_path / "results" / "box" / "figures" / f"{name}.png").stat().st_size > 10_000


def test_a_figure_of_unequal_repeats_says_up_to(tmp_path):
    job = job_of(tmp_path, *made.repeats("single", 20, 21, 22), made.record("ddp", 30, ranks=2))
    assert "median of up to 3 repeats" in str(throughput._key(throughput.data(job)["rows"]))
