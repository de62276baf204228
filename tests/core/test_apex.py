"""Which apex `core.apex` takes, with made-up packages of that name; each case in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

VARIANTS = Path(__file__).parents[2] / "variants"
PROBE = """
import json, sys, torch
torch.cuda.is_available = lambda: {cuda}
from core.apex import amp, apex_backend, parallel
print(json.dumps([amp.__name__, parallel.__name__, vars(apex_backend())]))
"""


def backend(site: Path, files: dict[str, str], cuda: bool = False) -> tuple[str, str, dict]:
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(cuda=cuda)],
        env={**os.environ, "PYTHONPATH": f"{VARIANTS}{os.pathsep}{site}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_apex_the_stand_in_runs(tmp_path):
    amp, parallel, chosen = backend(tmp_path, {})
    assert amp == "core.apex_standin.amp"
    assert parallel == "core.apex_standin.parallel"
    assert chosen == {"name": "stand-in", "reason": "apex is not installed", "cuda_ext": None}


@pytest.mark.parametrize(
    "files",
    [
        {"apex/__init__.py": "from pyramid.session import UnencryptedCookieSessionFactoryConfig"},
        {
            "apex/__init__.py": "",
            "apex-0.9.10.dev0.dist-info/METADATA": "Metadata-Version: 2.1\nName: apex\nVersion: 0.9.10.dev0\n"
            "Summary: Pyramid toolkit to add Velruse, Flash Messages, CSRF and more",
        },
    ],
    ids=["fails", "imports"],
)
def test_the_web_toolkit_from_pypi_is_said_by_name(tmp_path, files):
    _, _, chosen = backend(tmp_path, files, cuda=True)
    assert chosen["name"] == "stand-in"
    assert chosen["reason"] == "the package named apex on PyPI is an unrelated web toolkit, not NVIDIA apex"
    assert chosen["cuda_ext"] is None


def test_a_too_new_apex_is_said_by_name(tmp_path):
    _, _, chosen = backend(tmp_path, {"apex/__init__.py": "__version__ = '25.09'"}, cuda=True)
    assert chosen["name"] == "stand-in"
    assert chosen["reason"].startswith("apex 25.09 has no amp and no parallel: NVIDIA removed amp and parallel")
    assert "25.04 (commit e13873de)" in chosen["reason"]


@pytest.mark.parametrize(
    "text", ["raise OSError('libcudart.so.11:\\n not found')", "import sys; sys.exit(3)", "1 +"]
)
def test_a_broken_apex_is_a_reason_in_one_line(tmp_path, text):
    _, _, chosen = backend(tmp_path, {"apex/__init__.py": text}, cuda=True)
    assert chosen["name"] == "stand-in"
    assert chosen["reason"].startswith("apex is installed but cannot be imported: ")
    assert "\n" not in chosen["reason"]


REAL = {"apex/__init__.py": "__version__ = '25.04'", "apex/amp/__init__.py": "", "apex/parallel/__init__.py": ""}


def test_apex_without_cuda_gives_way(tmp_path):
    amp, _, chosen = backend(tmp_path, REAL)
    assert amp == "core.apex_standin.amp"
    assert chosen == {
        "name": "stand-in",
        "reason": "apex needs CUDA; there is none here",
        "cuda_ext": False,
    }


@pytest.mark.parametrize("kernels", [True, False])
def test_the_real_apex_is_taken_where_there_is_cuda(tmp_path, kernels):
    amp, parallel, chosen = backend(tmp_path, REAL | ({"amp_C.py": ""} if kernels else {}), cuda=True)
    assert (amp, parallel) == ("apex.amp", "apex.parallel")
    assert chosen["name"] == "apex 25.04"
    assert chosen["cuda_ext"] is kernels


def test_an_apex_whose_amp_breaks_gives_way(tmp_path):
    broken = REAL | {"apex/amp/__init__.py": "import a_module_that_is_not_there"}
    amp, _, chosen = backend(tmp_path, broken, cuda=True)
    assert amp == "core.apex_standin.amp"
    assert "apex 25.04 is installed but cannot be imported: ModuleNotFoundError" in chosen["reason"]


def test_core_apart_from_this_module_imports_no_apex(tmp_path):
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex/__init__.py").write_text("raise SystemError('apex was imported')")
    done = subprocess.run(
        [sys.executable, "-c", "import core.apex_standin, sys; assert 'apex' not in sys.modules"],
        env={**os.environ, "PYTHONPATH": f"{VARIANTS}{os.pathsep}{tmp_path}"},
    )
    assert done.returncode == 0
