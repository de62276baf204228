"""The variants' own flags as options of `bench run`, read from the one place that defines them."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import PurePath
from types import ModuleType
from typing import Any

import click

from bench.registry import VARIANTS_DIR


def _load_config_module() -> ModuleType:
    """variants/core/config.py by its path: importing it as `core.config` would import torch with it."""
    name = "bench._variants_config"
    spec = importlib.util.spec_from_file_location(name, VARIANTS_DIR / "core" / "config.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


_config = _load_config_module()
Config = _config.Config
TRAINING_SET: int = _config.TRAINING_SET
flag_name: Callable[[Field], str] = _config.flag_name
whole: Callable[[int], Callable[[str], int]] = _config.whole
real: Callable[..., Callable[[str], float]] = _config.real

# The harness says where the raw record goes, so that is no flag of `bench run`.
FIELDS = tuple(spec for spec in fields(Config) if spec.name != "record")


class Parsed(click.ParamType):
    """A value that `parse` reads from its text, raising ValueError with what is allowed."""

    def __init__(self, parse: Callable[[str], Any], metavar: str) -> None:
        self.parse, self.name = parse, metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The parsed value; a default is passed through as it is."""
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives a click command every flag of the variants but --record."""
    for spec in reversed(FIELDS):
        command = click.option(
            flag_name(spec),
            type=Parsed(spec.metadata["parse"], spec.metadata["metavar"]),
            default=spec.default,
            metavar=spec.metadata["metavar"],
            show_default=spec.default is not None,
            help=spec.metadata["help"],
        )(command)
    return command


def config_argv(cfg: Any) -> list[str]:
    """The flags that make a variant train `cfg`: those that are not at their default."""
    argv = []
    for spec in fields(Config):
        value = getattr(cfg, spec.name)
        if value != spec.default:
            argv += [flag_name(spec), str(value)]
    return argv


def training_config(cfg: Any) -> dict[str, Any]:
    """`cfg` as a record holds it: what is trained, without where things are written."""
    return {spec.name: getattr(cfg, spec.name) for spec in fields(Config) if not spec.metadata["output"]}


def stored_config(cfg: Any) -> dict[str, Any]:
    """`cfg` as records hold it: what was trained, and no absolute path."""
    return stored(training_config(cfg))


def stored(config: dict[str, Any]) -> dict[str, Any]:
    """The `config` of a record as a variant wrote it, without an absolute path."""
    data_dir = config.get("data_dir")
    if isinstance(data_dir, str) and PurePath(data_dir).is_absolute():
        return {**config, "data_dir": PurePath(data_dir).name}
    return config
