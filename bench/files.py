"""Files that are there in whole or not at all."""

import contextlib
import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Put `text` at `path`, in whole or not at all, even when the power is cut; may raise OSError."""
    if path.exists() and not path.is_file():  # a pipe, or /dev/stdout: there is nothing to replace
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a link stays one
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
