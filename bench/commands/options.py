"""Options that several commands share."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from bench.flags import Parsed, real


@dataclass(frozen=True)
class Settings:
    """How a command that trains is to go about it: where records go, what is shown, when a run is ended."""

    results_dir: str = "results"
    run_timeout_s: float | None = None
    quiet: bool = False
    verbose: bool = False


def harness_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: the options of every command that trains, handed on as one argument, `settings`."""

    @functools.wraps(command)
    def wrapped(*, results_dir, run_timeout, quiet, verbose, **rest):
        return command(settings=Settings(results_dir, run_timeout, quiet, verbose), **rest)

    options = (
        click.option(
            "--results-dir",
            default="results",
            metavar="DIR",
            show_default=True,
            help="records go to DIR/MACHINE/",
        ),
        click.option(
            "--run-timeout",
            type=Parsed(real(0), "SECONDS"),
            metavar="SECONDS",
            help="end a run that takes longer  [default: by its number of images]",
        ),
        click.option("-q", "--quiet", is_flag=True, help="no progress, the table alone"),
        click.option("-v", "--verbose", is_flag=True, help="show the commands and all they print"),
    )
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped
