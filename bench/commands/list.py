"""`python -m bench list`."""

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def list_(as_json: bool) -> None:
    """Show the variants: what each does, how it is started, how many lines it differs from its parent."""
    from bench.listing import listing
    from bench.registry import RegistryError

    try:
        click.echo(listing(as_json))
    except RegistryError as error:
        raise click.UsageError(str(error)) from None
