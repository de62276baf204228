"""Which apex `core.apex` takes, with made-up packages of that name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

VARIANTS = Path(__file__).parents[2] / "variants"

REAL = {
    "apex/__init__.py": "__version__ = '25.04'",
    "apex/amp/__init__.py": "",
    "apex/parallel/__init__.py": "",
}
PACKAGES = {
    "nothing": {},
    "folder": {"apex/README.md": "not a package"},
    "web toolkit that fails": {"apex/__init__.py": "from pyramid.session import SignedCookieSessionFactory"},
    "web toolkit that imports": {
        "apex/__init__.py": "",
        "apex-0.9.10.dev0.dist-info/METADATA": "Metadata-Version: 2.1\nName: apex\nVersion: 0.9.10.dev0\n"
        "Summary: Pyramid toolkit to add Velruse, Flash Messages, CSRF and more\n",
    },
    "too new": {"apex/__init__.py": "__version__ = '25.09'"},
    "raises": {"apex/__init__.py": "raise OSError('libcudart.so.11:\\n not found')"},
    "exits": {"apex/__init__.py": "import sys; sys.exit(3)"},
    "does not parse": {"apex/__init__.py": "1 +"},
    "real": REAL,
    "real with kernels": {**REAL, "amp_C.py": ""},
    "broken amp": {**REAL, "apex/amp/__init__.py": "import a_module_that_is_not_there"},
}
# One process for all of them, as most of its time goes into importing torch.
PROBE = """
import importlib, json, sys, torch
site = sys.argv[1]
import core.apex_standin
assert "apex" not in sys.modules and "core.apex" not in sys.modules
for name in sys.argv[2:]:
    for cuda in (False, True):
        sys.path.insert(0, f"{site}/{name}")
        importlib.invalidate_caches()
        torch.cuda.is_available = lambda: cuda
        from core.apex import amp, apex_backend, parallel
        print(json.dumps([name, cuda, amp.__name__, parallel.__name__, vars(apex_backend())]))
        sys.path.pop(0)
        for module in [m for m in sys.modules if m.split(".")[0] in ("apex", "amp_C") or m == "core.apex"]:
            del sys.modules[module]
"""


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """{(package, whether there is CUDA): (module of amp, module of parallel, backend)}."""
    site = tmp_path_factory.mktemp("site")
    for package, files in PACKAGES.items():
        for name, text in files.items():
            path = site / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(site), *PACKAGES],
        env={**os.environ, "PYTHONPATH": str(VARIANTS), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(package, cuda): (amp, parallel, backend) for package, cuda, amp, parallel, backend in rows}


@pytest.mark.parametrize("package", ["nothing", "folder"])
@pytest.mark.parametrize("cuda", [False, True])
def test_without_apex_the_stand_in_runs(chosen, package, cuda):
    backend = {"name": "stand-in", "reason": "apex is not installed", "cuda_ext": None}
    assert chosen[package, cuda] == ("core.apex_standin.amp", "core.apex_standin.parallel", backend)


@pytest.mark.parametrize("package", ["web toolkit that fails", "web toolkit that imports"])
@pytest.mark.parametrize("cuda", [False, True])
def test_the_web_toolkit_from_pypi_is_said_by_name(chosen, package, cuda):
    assert chosen[package, cuda][2] == {
        "name": "stand-in",
        "reason": "the package named apex on PyPI is an unrelated web toolkit, not NVIDIA apex",
        "cuda_ext": None,
    }


@pytest.mark.parametrize("cuda", [False, True])
def test_a_too_new_apex_is_said_by_name(chosen, cuda):
    amp, _, backend = chosen["too new", cuda]
    assert amp == "core.apex_standin.amp"
    assert backend["reason"] == (
        "apex 25.09 has no amp and no parallel: NVIDIA removed amp and parallel in May 2025; "
        "the last tag with them is 25.04 (commit e13873de)"
    )


@pytest.mark.parametrize("package", ["raises", "exits", "does not parse"])
@pytest.mark.parametrize("cuda", [False, True])
def test_a_broken_apex_is_a_reason_in_one_line(chosen, package, cuda):
    amp, _, backend = chosen[package, cuda]
    assert amp == "core.apex_standin.amp"
    assert backend["reason"].startswith("apex is installed but cannot be imported: ")
    assert "\n" not in backend["reason"]


@pytest.mark.parametrize(("package", "kernels"), [("real", False), ("real with kernels", True)])
def test_the_real_apex_needs_cuda(chosen, package, kernels):
    amp, parallel, backend = chosen[package, False]
    assert (amp, parallel) == ("core.apex_standin.amp", "core.apex_standin.parallel")
    assert backend == {
        "name": "stand-in",
        "reason": "apex needs CUDA; there is none here",
        "cuda_ext": kernels,
    }
    amp, parallel, backend = chosen[package, True]
    assert (amp, parallel) == ("apex.amp", "apex.parallel")
    assert backend["name"] == "apex 25.04"
    assert backend["cuda_ext"] is kernels


def test_an_apex_whose_amp_breaks_gives_way(chosen):
    amp, _, backend = chosen["broken amp", True]
    assert amp == "core.apex_standin.amp"
    assert "apex 25.04 is installed but cannot be imported: ModuleNotFoundError" in backend["reason"]
