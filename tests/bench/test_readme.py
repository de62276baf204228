"""The README's marked parts are made; the rest is left alone."""

from bench.registry import variants
from bench.report.readme import filled
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
