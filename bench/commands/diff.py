"""`python -m bench diff`."""

import click

from bench.flags import Parsed, whole


@click.command()
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
