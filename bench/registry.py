"""The variants there are, read from the docstrings of their files; no variant is imported."""

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

VARIANTS_DIR = Path(__file__).resolve().parent.parent / "variants"
RANKS = ("one", "launcher", "itself")
_KINDS = {"": "method", "probes": "probe", "pitfalls": "pitfall"}


class RegistryError(Exception):
    """A variant that is not there, or a file that does not keep the contract. One line, for the user."""


@dataclass(frozen=True)
class Variant:
    """One script. `kind` is method, probe, pitfall, or own for a file outside the project."""

    name: str
    path: Path
    kind: str

    @cached_property
    def source(self) -> str:
        """The text of the file; raises RegistryError when it cannot be read."""
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise RegistryError(f"{self.path.name} cannot be read: {error}") from None

    @cached_property
    def _written_docstring(self) -> str:
        """The docstring as it stands in the file; raises RegistryError when the file is no Python."""
        try:
            text = ast.get_docstring(ast.parse(self.source), clean=False)
        except (SyntaxError, ValueError) as error:
            raise RegistryError(f"{self.path.name} cannot be read as Python: {error}") from None
        return text or ""

    @property
    def docstring(self) -> str:
        """The docstring, dedented."""
        return inspect.cleandoc(self._written_docstring)

    def checked(self) -> "Variant":
        """Itself; raises RegistryError when the file is no Python or says what we do not know."""
        if self.ranks not in RANKS:
            raise RegistryError(
                f"{self.path.name}: its docstring says Ranks: {self.ranks}, not {', '.join(RANKS)}"
            )
        return self

    @property
    def summary(self) -> str:
        """The first sentence of the docstring: the technique."""
        return self.docstring.partition("\n\n")[0].replace("\n", " ").strip()

    @property
    def command(self) -> str | None:
        """The command that launches the file by hand: an indented line, as prose may begin with `python`."""
        pattern = r"^ +((?:PYTHONPATH=variants )?(?:torchrun|python|accelerate) .+)$"
        found = re.search(pattern, self._written_docstring, re.MULTILINE)
        return found.group(1).strip() if found else None

    @property
    def parent(self) -> str | None:
        """The name of the variant it differs from by one technique."""
        name = self._field("Parent")
        return None if name in (None, "none") else name

    @property
    def differs(self) -> str | None:
        """Why it is another training than `single`'s on purpose; None when it is meant to be the same."""
        return self._field("Differs")

    @property
    def ranks(self) -> str:
        """Who starts its ranks: `one` (there is only one), `launcher`, or `itself`."""
        if self._field("Ranks"):
            return self._field("Ranks")
        if self.command is None:  # a script of the user's may say nothing: one that joins a group wants ranks
            return "launcher" if "init_process_group" in self.source else "one"
        return "launcher" if self.command.startswith("torchrun") else "one"

    @property
    def states_ranks(self) -> bool:
        """Whether the docstring says who starts its ranks, rather than that we guess it."""
        return self._field("Ranks") is not None

    def _field(self, key: str) -> str | None:
        found = re.search(rf"^ *{key}: (.+)$", self.docstring, re.MULTILINE)
        return found.group(1).strip() if found else None


def variants() -> dict[str, Variant]:
    """All variants of the project by name, methods first, parents before children, then by name."""
    found = [
        Variant(path.stem, path, kind)
        for folder, kind in _KINDS.items()
        for path in sorted((VARIANTS_DIR / folder).glob("*.py"))
        if not path.name.startswith("_")
    ]
    by_name = {variant.name: variant for variant in found}
    order = list(_KINDS.values())
    return dict(
        sorted(
            by_name.items(), key=lambda item: (order.index(item[1].kind), _depth(item[1], by_name), item[0])
        )
    )


def find(name_or_path: str) -> Variant:
    """The variant of that name, or the user's own script at that path; raises RegistryError."""
    known = variants()
    if name_or_path in known:
        return known[name_or_path]
    path = Path(name_or_path)
    if path.suffix == ".py" and path.is_file():
        resolved = path.resolve()
        ours = [variant for variant in known.values() if variant.path == resolved]
        name = f"own-{path.stem}" if path.stem in known else path.stem  # results must not pass for ours
        return ours[0] if ours else Variant(name, resolved, "own").checked()
    raise RegistryError(
        f"no variant {name_or_path!r}: takes a path to a .py file, all, or one of {', '.join(known)}"
    )


def _depth(variant: Variant, by_name: dict[str, Variant]) -> int:
    """How many steps the variant is away from one without a parent."""
    seen = {variant.name}
    while variant.parent in by_name and variant.parent not in seen:
        seen.add(variant.parent)
        variant = by_name[variant.parent]
    return len(seen)
