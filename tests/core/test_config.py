"""The flags: what is refused is refused in one line that says what is allowed, with exit code 2."""

import subprocess
import sys
from dataclasses import fields

import pytest

from core.config import Config, flag_name, unavailable
from tests.ranks import VARIANTS


def refused(capsys, *argv: str) -> str:
    """The one line with which `argv` is refused."""
    with pytest.raises(SystemExit) as stop:
        Config.from_cli(list(argv))
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--epochs", "0"], "a whole number from 1 up"),
        (["--epochs", "1.5"], "a whole number, got '1.5'"),
        (["--seed", "-1"], "a whole number from 0 up"),
        (["--seed", str(2**64)], "a whole number"),
        (["--lr", "nan"], "a number above 0"),
        (["--lr", "0"], "a number above 0"),
        (["--lr", "inf"], "a number above 0"),
        (["--momentum", "1"], "from 0 and below 1"),
        (["--lr-schedule", "cosine"], "constant, onecycle"),
        (["--model", "resnet"], "package.module:Class"),
        (["--model", "a b:C"], "package.module:Class"),
        (["--norm", "layer"], "batch, none"),
        (["--dtype", "float16"], "float32, float64"),
        (["--amp-dtype", "fp16"], "auto, bfloat16, float16"),
        (["--dataset", "cifar10"], "mnist, fashion_mnist, kmnist"),
        (["--timeout", "0"], "above 0"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--epoch", "3"], "--epoch"),  # no abbreviations: a typo must not become another flag
        (["--epochs"], "expected one argument"),
        (["--train-images", "100"], "larger than the training set of --train-images 100"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_line(capsys, argv, said):
    assert said in refused(capsys, *argv)


def test_a_global_batch_that_does_not_divide_names_the_next_that_do(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert "does not divide by 3 ranks; the next that do: 126 and 129" in refused(
        capsys, "--global-batch-size", "128"
    )


def test_under_torchrun_the_first_rank_of_a_machine_speaks_and_the_others_wait(capsys, monkeypatch):
    waited = []
    monkeypatch.setattr("core.config.time.sleep", waited.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    with pytest.raises(SystemExit):
        Config.from_cli(["--epochs", "0"])
    assert capsys.readouterr().err == ""
    assert waited == [5]


def test_a_technique_that_this_machine_lacks_ends_in_one_line_and_its_own_exit_code(capsys):
    with pytest.raises(SystemExit) as ended:
        unavailable("needs 2 GPUs")
    assert ended.value.code == 69
    assert capsys.readouterr().err.endswith(": unavailable: needs 2 GPUs\n")


def test_a_stray_rank_in_the_environment_does_not_silence_a_single_process(capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert "--epochs" in refused(capsys, "--epochs", "0")


@pytest.mark.parametrize("spelling", ["--local-rank=1", "--local_rank=1"])
def test_what_torch_distributed_launch_passes_is_taken(spelling):
    assert Config.from_cli([spelling]) == Config()


def test_every_flag_has_help_and_its_default_passes_its_own_check():
    for spec in fields(Config):
        assert spec.metadata["help"]
        if spec.default is not None:
            assert Config.from_cli([flag_name(spec), str(spec.default)]) == Config()


def test_the_flags_are_read_without_torch():
    code = "import config, sys; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=VARIANTS / "core", check=True)
