"""What one variant has that another has not: to be read, and counted."""

import ast
import difflib
import io
import tokenize
from pathlib import Path

import click

from bench.registry import RegistryError, Variant, find

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def show(a: str, b: str | None, context: int) -> None:
    """Print the diff from A's parent to A, or from A to B; raises RegistryError when one is not there."""
    new = find(b or a)
    if b is None and new.parent is None:
        raise RegistryError(f"{a} has no parent to be held against: name a second variant")
    old = find(new.parent if b is None else a)
    for line in unified(old, new, context):
        click.secho(line, fg=_COLOURS.get(line[:1]), bold=line.startswith(("+++", "---")) or None)
    count = changed_lines(new.path, old.path)
    relation = "its parent " if new.parent == old.name else ""
    click.echo(
        f"{new.name} against {relation}{old.name}: {count} line{'s differ' if count != 1 else ' differs'} "
        "(comments, docstrings and blank lines not counted)"
    )


def unified(old: Variant, new: Variant, context: int = 3) -> list[str]:
    """The lines of a unified diff, comments and all."""
    texts = [variant.path.read_text(encoding="utf-8").splitlines() for variant in (old, new)]
    return list(difflib.unified_diff(*texts, old.path.name, new.path.name, n=context, lineterm=""))


def changed_lines(child: Path, parent: Path) -> int:
    """How many lines of code differ; a changed line counts once, one only indented anew counts too."""
    before, after = code_lines(parent), code_lines(child)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return sum(
        max(before_end - before_start, after_end - after_start)
        for kind, before_start, before_end, after_start, after_end in matcher.get_opcodes()
        if kind != "equal"
    )


def code_lines(path: Path) -> list[str]:
    """The lines of a file as written, without comments, docstrings and what is then blank."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return [line.rstrip() for line in lines if line.strip()]
