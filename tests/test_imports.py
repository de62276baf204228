"""Who may import whom: variants core and torch, core torch, bench neither."""

import ast
import sys
from pathlib import Path

import pytest

from tests.ranks import ROOT, VARIANTS

BENCH = sorted((ROOT / "bench").rglob("*.py"))
CORE = sorted((VARIANTS / "core").rglob("*.py"))
SCRIPTS = [path for path in sorted(VARIANTS.rglob("*.py")) if "core" not in path.parts]

# Beyond the standard library. filelock, platformdirs and tensorboard serve one branch of core each.
ALLOWED_IN_BENCH = {"bench", "click", "filelock", "rich", "psutil", "numpy", "pandas", "matplotlib", "scipy"}
ALLOWED_IN_CORE = {"torch", "numpy", "torchvision", "filelock", "platformdirs", "apex", "core"}
OF_A_TECHNIQUE = {"accelerate_ddp": {"accelerate"}}


def imported(path: Path) -> set[str]:
    """Top-level names of all absolute imports anywhere in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found - set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", BENCH, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_bench_never_imports_torch_nor_a_variant(path):
    assert imported(path) <= ALLOWED_IN_BENCH


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_core_imports_neither_bench_nor_a_variant(path):
    assert imported(path) <= ALLOWED_IN_CORE


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_variant_imports_core_torch_and_its_techniques_own_library(path):
    assert imported(path) <= {"core", "torch"} | OF_A_TECHNIQUE.get(path.stem, set())
