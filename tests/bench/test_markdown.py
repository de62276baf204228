"""Foreign text stays text, in a table, a paragraph, code and a fence."""

import re

import pytest

from bench import markdown

NASTY = "a|b\n| c | <img src=x onerror=alert(1)> `x` **b** [l](http://e.x) \x1b[31mred\x1b[0m &amp;"


def test_escaped_text_has_no_markup_left():
    text = markdown.escape(NASTY)
    assert "\n" not in text and "\x1b" not in text
    assert "<" not in text and ">" not in text
    assert not re.search(r"(?<!\\)[|`*\[\]]", text)
    assert "http\\://" in text and "&amp;amp;" in text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1. one", r"1\. one"),
        ("# head", r"\# head"),
        ("- item", r"\- item"),
        ("__init__", r"\_\_init\_\_"),
        ("ddp_amp 3.5 GiB (GPU 0; -1) 2026-01-02", "ddp_amp 3.5 GiB (GPU 0; -1) 2026-01-02"),
    ],
)
def test_what_would_begin_a_block_is_escaped_and_plain_words_are_not(text, wanted):
    assert markdown.escape(text) == wanted


def test_a_table_keeps_its_shape():
    made = markdown.table(["a", "b"], [[markdown.escape(NASTY), markdown.code("x|`y`")]], "lr")
    lines = made.splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3]
    assert len({len(line) for line in lines}) == 1


def test_fences_are_longer_than_what_is_in_them():
    made = markdown.fence("```\n</details>\n````", "diff")
    assert made.startswith("`````diff\n") and made.endswith("\n`````")


def test_code_with_backticks_at_its_ends():
    assert markdown.code("`a`") == "`` `a` ``"


def test_long_text_is_cut():
    assert len(markdown.one_line("x" * 10_000)) == 240
