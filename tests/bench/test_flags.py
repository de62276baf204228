from dataclasses import replace

import click
import pytest
from click.testing import CliRunner

from bench.flags import Config, config_argv, config_options, training_config


def parsed(*argv: str) -> dict:
    """What a command with the variants' flags gets."""
    got = {}
    command = click.command()(config_options(lambda **flags: got.update(flags)))
    result = CliRunner().invoke(command, argv)
    assert result.exit_code == 0, result.output
    return got


def test_without_flags_it_is_the_default_job() -> None:
    assert Config(**parsed()) == Config()


def test_flags_that_make_a_configuration_make_it_again() -> None:
    cfg = replace(Config(), epochs=2, lr=0.1, norm="none", train_images=512, data_dir="sets")
    assert Config(**parsed(*config_argv(cfg))) == cfg


def test_defaults_are_not_spelled_out() -> None:
    assert config_argv(Config()) == []


def test_where_the_record_goes_is_no_flag_of_the_harness() -> None:
    assert "record" not in parsed()


def test_a_wrong_value_is_told_with_what_is_allowed() -> None:
    command = click.command()(config_options(lambda **flags: None))
    with pytest.raises(click.BadParameter, match="batch, none"):
        command.main(["--norm", "layer"], standalone_mode=False)


def test_outputs_are_no_part_of_what_is_trained() -> None:
    assert not {"record", "checkpoint_dir", "tensorboard"} & set(training_config(Config()))
