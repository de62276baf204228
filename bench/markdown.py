"""Markdown that holds whatever text is put into it: tables, code, folded parts. What comes from a record is
escaped here, so that a log line can neither break a table nor inject markup."""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Underscores within a word are no markup, and `://`, `www.` and `@` make links by themselves.
_MARKUP = re.compile(r"[\\`*\[\]|~^$@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.")
_BLOCK_START = re.compile(r"^(\d+(?=[.)]\s)|(?=[-+#=]))(.)")
_LONGEST = 240


def one_line(text: object, longest: int = _LONGEST) -> str:
    """`text` on one line, without terminal colours and control characters, cut when it is too long."""
    plain = _ANSI.sub("", str(text))
    plain = " ".join("".join(char if char.isprintable() else " " for char in plain).split())
    return plain if len(plain) <= longest else plain[: longest - 1].rstrip() + "…"


def escape(text: object) -> str:
    """`text` as itself: nothing in it is markup, a link, a table cell's end or an HTML tag."""
    # Entities for < > &: a backslash does not disarm them in every renderer.
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _BLOCK_START.sub(r"\1\\\2", _MARKUP.sub(r"\\\g<0>", plain))


def code(text: object, longest: int = _LONGEST) -> str:
    """`text` as inline code, also within a table."""
    plain = one_line(text, longest).replace("|", "\\|")
    ticks = "`" * (1 + max((len(run) for run in re.findall(r"`+", plain)), default=0))
    space = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{ticks}{space}{plain}{space}{ticks}"


def link(text: str, target: str) -> str:
    """A link with `text` (Markdown already) to a path relative to the file it stands in."""
    return f"[{text}]({quote(target)})"


def image(alt: str, target: str) -> str:
    return f"![{escape(alt)}]({quote(target)})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table of cells that are Markdown already, its columns padded so that it reads in a terminal too.

    `align` has one letter a column, l or r; left when there is none.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    right = [side == "r" for side in align.ljust(len(header), "l")[: len(header)]]
    widths = [max(3, *(len(row[i]) for row in [list(header), *cells])) for i in range(len(header))]
    rule = ["-" * (width - 1) + (":" if at else "-") for width, at in zip(widths, right, strict=True)]
    return "\n".join(_table_row(row, widths, right) for row in [list(header), rule, *cells])


def _table_row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if at else cell.ljust(width)
        for cell, width, at in zip(cells, widths, right, strict=True)
    )
    return f"| {' | '.join(padded)} |"


def fence(text: str, language: str = "") -> str:
    """`text` as a block of code, whatever backticks and control characters are in it."""
    plain = "".join(char for char in _ANSI.sub("", text) if char.isprintable() or char in "\n\t")
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", plain)), default=0))
    return f"{ticks}{language}\n{plain.rstrip()}\n{ticks}"


def details(summary: str, body: str) -> str:
    """A folded part. `summary` is HTML (no renderer reads Markdown there), `body` Markdown."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def html(text: object) -> str:
    """`text` as itself within HTML."""
    return (
        one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    )


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def listing(items: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
