"""Figures as files that say which data they were drawn from, so that a check needs no drawing."""

import hashlib
import io
import json
import os
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.plots.style import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DATA, _CODE = "Data-SHA256", "Code-SHA256"
_DPI = 150
_PNG_START = b"\x89PNG\r\n\x1a\n"


def digest(data: Any) -> str:
    """Equal for equal data, also where the last bits of a float depend on the processor."""
    return hashlib.sha256(json.dumps(_rounded(data), sort_keys=True).encode()).hexdigest()


def code_digest() -> str:
    """Of the code that draws. It decides whether a figure is drawn anew, not whether it is stale."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256("".join(path.read_text(encoding="utf-8") for path in sources).encode()).hexdigest()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def save(figure: "Figure", path: Path, data_digest: str) -> None:
    """Write `path` (.png) and the .svg beside it, byte for byte the same each time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = code_digest()
    with style():
        png, svg = io.BytesIO(), io.BytesIO()
        words = {"Software": None, _DATA: data_digest, _CODE: code}
        figure.savefig(png, format="png", dpi=_DPI, metadata=words)
        identifier = f"{_DATA}:{data_digest} {_CODE}:{code}"
        words = {"Date": None, "Creator": None, "Identifier": identifier}
        figure.savefig(svg, format="svg", metadata=words)
    _replace(path, png.getvalue())
    _replace(path.with_suffix(".svg"), svg.getvalue().replace(b"\r\n", b"\n"))


def _replace(path: Path, content: bytes) -> None:
    """Write beside `path` and rename, so that there is never half a figure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def drawn_from(path: Path) -> dict[str, str]:
    """{"data", "code"}: the digests that the figure at `path` (.png or .svg) carries; raises OSError.

    Both are "" when the file ends before the figure does.
    """
    raw = path.read_bytes()
    texts = _png_texts(raw) if raw.startswith(_PNG_START) else _svg_texts(raw)
    return {"data": texts.get(_DATA, ""), "code": texts.get(_CODE, "")}


def is_drawn_from(path: Path, data_digest: str, *, code: str | None = None) -> bool:
    """Whether both files of a figure are there and show these data (drawn by this `code`, if given)."""
    try:
        both = [drawn_from(path), drawn_from(path.with_suffix(".svg"))]
    except OSError:
        return False
    return all(found["data"] == data_digest and code in (None, found["code"]) for found in both)


def _png_texts(raw: bytes) -> dict[str, str]:
    """The tEXt chunks of a PNG: length, kind, key NUL text, checksum. None when its last chunk is missing."""
    texts, at = {}, len(_PNG_START)
    while at + 8 <= len(raw):
        length, kind = struct.unpack(">I4s", raw[at : at + 8])
        if kind == b"tEXt":
            key, _, text = raw[at + 8 : at + 8 + length].partition(b"\0")
            texts[key.decode("latin-1")] = text.decode("latin-1")
        at += 12 + length
        if kind == b"IEND" and at == len(raw):
            return texts
    return {}


def _svg_texts(raw: bytes) -> dict[str, str]:
    if not raw.rstrip().endswith(b"</svg>"):
        return {}
    return dict(re.findall(rf"({_DATA}|{_CODE}):([0-9a-f]+)", raw[:4000].decode("utf-8", "replace")))
