from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.cli import bench
from bench.diff import changed_lines, code_lines

PARENT = (
    '"""Doc."""\n\nimport torch\n\n\ndef main():\n    """What it does."""\n    a = 1  # one\n    return a\n'
)


def count(tmp_path: Path, child: str, parent: str = PARENT) -> int:
    (tmp_path / "child.py").write_text(child)
    (tmp_path / "parent.py").write_text(parent)
    return changed_lines(tmp_path / "child.py", tmp_path / "parent.py")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a = 1", "a = 2", 1),
        ("    a = 1  # one\n", "", 1),
        ("    a = 1  # one\n", "    a = 1\n    b = 2\n    c = 3\n", 2),
        ("    a = 1  # one\n", "    with torch:\n        a = 1\n", 2),
        ("# one", "# uno", 0),
        ('"""Doc."""', '"""Another\n\nof three lines.\n"""', 0),
        ("What it does.", "Other.", 0),
        ("\n\n\n", "\n", 0),
        ("a = 1  # one", 'a = "# no comment"', 1),
    ],
)
def test_what_counts(tmp_path: Path, old: str, new: str, expected: int) -> None:
    assert count(tmp_path, PARENT.replace(old, new)) == expected


def test_code_is_kept_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(PARENT)
    assert code_lines(path) == ["import torch", "def main():", "    a = 1", "    return a"]


def shown(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(bench, ["diff", *arguments])
    return result.exit_code, result.output


def test_a_variant_is_held_against_its_parent() -> None:
    code, text = shown("dp")
    assert code == 0
    assert "+    model = nn.DataParallel(model)" in text
    assert "dp against its parent single: 1 line differs" in text


def test_two_variants_are_held_against_each_other() -> None:
    assert "ddp_amp against single: " in shown("single", "ddp_amp")[1]


def test_the_context_is_as_asked() -> None:
    assert len(shown("dp", "--context", "0")[1].splitlines()) < len(shown("dp")[1].splitlines())
    assert not [line for line in shown("dp", "--context", "0")[1].splitlines() if line.startswith(" ")]


def test_a_colour_for_terminals_alone() -> None:
    assert "\x1b[" not in shown("dp")[1]
    assert (
        "\x1b[32m+    model = nn.DataParallel" in CliRunner().invoke(bench, ["diff", "dp"], color=True).output
    )
