"""`python -m bench run`."""

import sys

import click

from bench.commands.options import harness_options
from bench.flags import Config, Parsed, config_options, whole
from bench.plan import LAUNCHERS


@click.command()
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
@click.option("--json", "json_to", metavar="PATH|-", help="write the rows as JSON there; - is stdout")
@harness_options
@config_options
def run(names, world_size, launcher, repeats, json_to, settings, **flags) -> None:
    """Run variants, judge them, and show one row for each.

    Exit code: 0 when every row is ok or skipped, 1 when one failed, 2 for a mistake in the command,
    130 after Ctrl-C.
    """
    from bench.harness import SessionError
    from bench.session import Request, run_session

    request = Request(
        names=names,
        cfg=Config(**flags),
        world_size=world_size,
        launcher=launcher,
        repeats=repeats,
        json_to=json_to,
        settings=settings,
    )
    try:
        sys.exit(run_session(request))
    except SessionError as error:
        raise click.UsageError(str(error)) from None
