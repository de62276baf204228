"""The README's marked parts are made; the rest is left alone."""

from pathlib import Path

from bench.registry import variants
from bench.report.collect import machines
from bench.report.readme import filled
from tests.bench import synthetic as made
from tests.ranks import ROOT

TEXT = """before
<!-- picture: begin (made) -->
old
<!-- picture: end -->
between
<!-- variants: begin -->
<!-- variants: end -->
after
"""


def test_without_results_the_table_still_lists_every_method():
    known = variants()
    text = filled(TEXT, known, [], "results")
    assert text.startswith("before\n<!-- picture: begin (made) -->\n*(no results yet)*\n")
    assert text.endswith("<!-- variants: end -->\nafter\n")
    for variant in known.values():
        assert (f"](variants/{variant.name}.py)" in text) == (variant.kind == "method")
    assert filled(text, known, [], "results") == text


def test_the_readme_has_both_parts():
    text = (ROOT / "README.md").read_text()
    assert "<!-- picture: begin" in text and "<!-- variants: begin" in text


def made_of(folder: Path, *raws: dict, text: str = TEXT) -> str:
    made.write(folder / "box (a)", *raws)
    found, _ = machines(folder, variants())
    return filled(text, variants(), found, "results")


def cells(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| [`{name}`]"))
    return [cell.strip() for cell in line.split("|")[5:-1]]


def test_only_the_reference_is_called_so(tmp_path):
    elsewhere = {**made.ENVIRONMENT, "host": "89abcdef"}
    text = made_of(
        tmp_path,
        *made.repeats("single", 20, 20),
        *made.repeats("ddp", 10, 10, ranks=2, environment=elsewhere),
        *made.repeats("dp", 10, 10),
    )
    assert cells(text, "single")[1:] == ["1", "reference"]
    assert cells(text, "ddp")[1:] == ["unavailable: measured on another host", "not compared"]
    assert cells(text, "dp")[1] == "1.98x"
    assert "](results/box%20%28a%29/figures/throughput.png)" in text


def test_without_single_nothing_is_a_reference(tmp_path):
    text = made_of(tmp_path, made.failed("single", "no", ranks=1), *made.repeats("dp", 10, 10))
    assert cells(text, "dp")[1:] == ["unavailable: `single` did not finish", "not compared"]


APEX = "<!-- apex: begin -->\n<!-- apex: end -->\n"


def test_apex_beside_native_amp(tmp_path):
    assert "not measured side by side yet" in made_of(tmp_path, made.record("single_amp"), text=APEX)
    text = made_of(tmp_path, made.record("apex_amp", shift=1e-3), text=APEX)  # one that names no apex
    assert "(apex and torch.amp, float32 and float32): over 60 steps" in text and "0.059" in text


def test_apex_of_other_steps_is_not_compared(tmp_path):
    text = made_of(tmp_path, made.record("single_amp"), made.record("apex_amp", steps=30), text=APEX)
    assert "they ran for 30 and 60 steps" in text
