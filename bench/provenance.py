"""Where a number comes from: the code, the commit, the load of the machine; and names kept out of it."""

import contextlib
import getpass
import hashlib
import importlib.machinery
import importlib.metadata
import os
import re
import socket
import subprocess
import sys
from pathlib import Path, PurePosixPath

from bench.registry import VARIANTS_DIR

ROOT = VARIANTS_DIR.parent
_POSIX_PATH = re.compile(r"(?<![\w.:/~<>-])/(?:[\w.+@~-]+/)+[\w.+@~-]*")
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:[\\/](?:[^\\/:*?\"<>|\s]+[\\/])*[^\\/:*?\"<>|\s]*")


def commit() -> tuple[str | None, bool | None]:
    """(the commit checked out, whether code differs from it), or (None, None) outside a checkout."""
    revision = _git("rev-parse", "HEAD")
    if revision is None:
        return None, None
    changes = _git(
        "status", "--porcelain", "--", "variants", "bench"
    )  # new results are no change of the code
    return revision, bool(changes)


def _git(*arguments: str) -> str | None:
    if not (ROOT / ".git").exists():  # a folder above might be a checkout of something else
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def code_digest(model: str = "convnet") -> str:
    """16 hex digits over all variants, the core and the file of a `--model` of the user's: of their text."""
    digest = hashlib.sha256()
    for path in sorted(VARIANTS_DIR.rglob("*.py")):
        digest.update(path.relative_to(VARIANTS_DIR).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    own = _module_file(model.partition(":")[0]) if ":" in model else None
    if own:
        digest.update(model.encode() + b"\0" + own.read_bytes())
    return digest.hexdigest()[:16]


def _module_file(module: str) -> Path | None:
    """The file of `package.module`, found without importing anything of it; None when that does not tell."""
    first, *rest = module.split(".")
    spec = importlib.machinery.PathFinder.find_spec(first, [os.getcwd(), str(VARIANTS_DIR), *sys.path])
    if spec is None:
        return None
    if not rest:
        found = [Path(spec.origin)] if spec.origin else []
    else:
        places = [Path(place, *rest) for place in spec.submodule_search_locations or []]
        found = [path for place in places for path in (place.with_suffix(".py"), place / "__init__.py")]
    return next((path for path in found if path.suffix == ".py" and path.is_file()), None)


def version() -> str | None:
    """Of this project, as it was installed; None in a checkout that was not."""
    try:
        return importlib.metadata.version("ddp-side-by-side")
    except importlib.metadata.PackageNotFoundError:
        return None


def load_average() -> list[float] | None:
    """Processes wanting a core over the last 1, 5 and 15 minutes; None where the system does not say."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except (AttributeError, OSError):
        return None


def scrub(text: str) -> str:
    """`text` without absolute paths, the name of this host and that of the user's home."""
    text = text.replace(f"{ROOT}{os.sep}", "")
    with contextlib.suppress(OSError):  # the folder we were started in may be gone
        text = text.replace(f"{Path.cwd()}{os.sep}", "")
    with contextlib.suppress(RuntimeError):  # a container may run under a number without a home
        text = re.sub(rf"{re.escape(str(Path.home()))}(?![\w-])", "~", text)
    text = _WINDOWS_PATH.sub(lambda found: _tail(found.group().replace("\\", "/")), text)
    text = _POSIX_PATH.sub(lambda found: _tail(found.group()), text)
    for name, instead in ((socket.gethostname(), "<host>"), (_user(), "<user>")):
        if name not in ("localhost", "root", ""):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", instead, text)
    return text


def _tail(path: str) -> str:
    """What says enough of a path: from site-packages on, or the last name."""
    parts = PurePosixPath(path).parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return parts[-1]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may run under a number without a name
        return ""
