"""The command line: `python -m bench list | diff | run | ...`.

`--help`, `list` and wrong flags must answer at once, so whatever takes long to import (numpy, rich, psutil)
is imported inside the command that needs it.
"""

import sys
from typing import NoReturn

import click

from bench.flags import Config, Parsed, config_options, real, whole
from bench.plan import LAUNCHERS
from bench.report_command import report


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def bench() -> None:
    """Train one MNIST network in many parallel and mixed-precision ways, and compare them."""


@bench.command("list")
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def list_(as_json: bool) -> None:
    """Show the variants: what each does, how it is started, how many lines it differs from its parent."""
    from bench.listing import listing
    from bench.registry import RegistryError

    try:
        click.echo(listing(as_json))
    except RegistryError as error:
        raise click.UsageError(str(error)) from None


@bench.command()
@click.argument("a")
@click.argument("b", required=False)
@click.option(
    "--context",
    type=Parsed(whole(0), "N"),
    default=3,
    metavar="N",
    show_default=True,
    help="unchanged lines around each change",
)
def diff(a: str, b: str | None, context: int) -> None:
    """Show how variant A differs from its parent, or from A to B."""
    from bench.diff import show
    from bench.registry import RegistryError

    try:
        show(a, b, context)
    except RegistryError as error:
        raise click.UsageError(str(error)) from None


@bench.command()
@click.option(
    "--variant",
    "names",
    multiple=True,
    required=True,
    metavar="NAME|PATH|all",
    help="a variant of `bench list`, a script of yours, or every method; may be repeated",
)
@click.option(
    "--world-size",
    type=Parsed(whole(1), "N"),
    metavar="N",
    help="ranks of each run; single-process variants run 1  [default: one per GPU, else 2]",
)
@click.option(
    "--launcher",
    type=click.Choice(LAUNCHERS),
    help="what starts the ranks  [default: torchrun, or the variant itself]",
)
@click.option(
    "--repeats",
    type=Parsed(whole(1), "N"),
    default=1,
    metavar="N",
    show_default=True,
    help="runs of each variant, interleaved: A B C, C B A, ...",
)
@click.option(
    "--results-dir", default="results", metavar="DIR", show_default=True, help="records go to DIR/MACHINE/"
)
@click.option("--json", "json_to", metavar="PATH|-", help="write the rows as JSON there; - is stdout")
@click.option(
    "--run-timeout",
    type=Parsed(real(0), "SECONDS"),
    metavar="SECONDS",
    help="end a run that takes longer  [default: by its number of images]",
)
@click.option("-q", "--quiet", is_flag=True, help="no progress, the table alone")
@click.option("-v", "--verbose", is_flag=True, help="show the commands and all they print")
@config_options
def run(
    names, world_size, launcher, repeats, results_dir, json_to, run_timeout, quiet, verbose, **flags
) -> None:
    """Run variants, judge them, and show one row for each.

    Exit code: 0 when every row is ok or skipped, 1 when one failed, 2 for a mistake in the command,
    130 after Ctrl-C.
    """
    from bench.session import Request, SessionError, run_session

    request = Request(
        names=names,
        cfg=Config(**flags),
        world_size=world_size,
        launcher=launcher,
        repeats=repeats,
        results_dir=results_dir,
        json_to=json_to,
        run_timeout_s=run_timeout,
        quiet=quiet,
        verbose=verbose,
    )
    try:
        sys.exit(run_session(request))
    except SessionError as error:
        raise click.UsageError(str(error)) from None


@bench.command()
@click.option(
    "--results-dir", default="results", metavar="DIR", show_default=True, help="where the records are"
)
@click.option(
    "--what", type=click.Choice(("runs", "steps")), default="runs", show_default=True, help="a line for each"
)
@click.option("--output", default="-", metavar="PATH|-", show_default=True, help="the CSV file; - is stdout")
def export(results_dir: str, what: str, output: str) -> None:
    """Write the records as CSV: one line a run, or one a step."""
    from pathlib import Path

    from bench.export import write

    if not Path(results_dir).is_dir():
        raise click.UsageError(f"--results-dir: there is no folder {results_dir}")
    try:
        lines, problems = write(Path(results_dir), what, output)
    except OSError as error:
        raise click.UsageError(f"cannot write to {output}: {error.strerror or error}") from None
    for line in problems:
        click.echo(f"left out: {line}", err=True)
    click.echo(f"{lines} lines", err=True)


bench.add_command(report)


def main() -> NoReturn:
    """The entry point: a mistake of the user's is one line on stderr and exit code 2."""
    try:
        bench.main(prog_name="python -m bench", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2 and later
            error.show()
            sys.exit(error.exit_code)
        command = getattr(error, "ctx", None)
        name = command.command_path if command else "python -m bench"
        print(f"{name}: error: {' '.join(error.format_message().split())}", file=sys.stderr)
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name in sys.stdlib_module_names or (error.name or "bench").split(".")[0] in (
            "bench",
            "core",
        ):
            raise
        print(f"python -m bench: error: {error.name} is not installed (pip install -e .)", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `bench list | head`
        sys.stderr.close()
        sys.exit(1)
    sys.exit(0)
