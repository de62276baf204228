from pathlib import Path

import pytest

from bench.machine import ProbeError, probe, slug
from bench.processes import Stop
from tests.bench.fakes import ENVIRONMENT, MACHINE


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({}, MACHINE),
        ({"usable_cores": 1}, "amd-epyc-1-core"),
        ({"cpu": "AMD EPYC 7B13 64-Core Processor"}, "amd-epyc-7b13-2-cores"),
        ({"cpu": "Intel Xeon Platinum 8488C"}, "intel-xeon-platinum-8488c-2-cores"),
        ({"cpu": ""}, "x86-64-2-cores"),
        ({"gpus": ["NVIDIA H200"]}, f"h200-x1-{MACHINE}"),
        ({"gpus": ["NVIDIA GeForce RTX 4090"] * 2}, f"rtx-4090-x2-{MACHINE}"),
    ],
)
def test_the_folder_of_a_machine(changes: dict, folder: str) -> None:
    assert slug({**ENVIRONMENT, **changes}) == folder


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('libcudart.so is missing')", "libcudart.so is missing"),
        ("import sys; sys.exit('broken')", "broken"),
    ],
)
def test_a_broken_torch_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    (tmp_path / "torch.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ProbeError, match=said) as caught:
        probe(Stop())
    assert "\n" not in str(caught.value)
