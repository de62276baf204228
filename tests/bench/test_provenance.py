import getpass
import socket
from pathlib import Path

import pytest

from bench.provenance import ROOT, code_digest, commit, scrub


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f'File "{ROOT}/variants/core/run.py", line 3', 'File "variants/core/run.py", line 3'),
        ('File "/opt/x/site-packages/torch/nn/a.py"', 'File "torch/nn/a.py"'),
        ("reads /data/sets/mnist now", "reads mnist now"),
        (f"in {Path.home()}/things/a.py", "in ~/things/a.py"),
        (f"in {Path.home()}", "in ~"),
        (r"in C:\Users\someone\a.py", "in a.py"),
        ("5 images/s, 1/2 of https://example.org/a/b", "5 images/s, 1/2 of https://example.org/a/b"),
    ],
)
def test_paths_of_this_machine_are_cut(text: str, left: str) -> None:
    assert scrub(text) == left


def test_names_of_host_and_user_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "grace-box")
    monkeypatch.setattr(getpass, "getuser", lambda: "grace")
    assert scrub("host: grace-box, user: grace, gracefully") == "host: <host>, user: <user>, gracefully"


def test_the_digest_is_of_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.provenance.VARIANTS_DIR", tmp_path)
    (tmp_path / "core").mkdir()
    (tmp_path / "single.py").write_text("one")
    first = code_digest()
    assert code_digest() == first
    (tmp_path / "core" / "data.py").write_text("two")
    assert code_digest() != first


def test_outside_a_checkout_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.provenance.ROOT", tmp_path)
    assert commit() == (None, None)


def test_the_digest_is_of_all_variants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.provenance.VARIANTS_DIR", tmp_path)
    (tmp_path / "probes").mkdir()
    first = code_digest()
    (tmp_path / "probes" / "one.py").write_text("one")
    second = code_digest()
    (tmp_path / "ddp.py").write_text("two")
    assert len({first, second, code_digest()}) == 3


@pytest.mark.parametrize("file", ["nets.py", "nets/__init__.py", "nets/small.py", "nets/small/__init__.py"])
def test_the_digest_is_of_a_network_of_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    model = "nets.small:Net" if "small" in file else "nets:Net"
    digests = {code_digest(), code_digest("nowhere.at.all:Net")}
    assert len(digests) == 1
    for text in ("raise SystemExit('imported')", "another"):
        path.write_text(text)
        digests.add(code_digest(model))
    assert len(digests) == 3


def test_without_a_home_a_text_is_scrubbed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert scrub("reads /data/sets/mnist now") == "reads mnist now"
