"""`python -m bench export`."""

import click


@click.command()
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
