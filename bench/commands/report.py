"""`python -m bench report`."""

import sys
from pathlib import Path

import click


@click.command()
@click.option(
    "--results-dir", default="results", metavar="DIR", show_default=True, help="where the records are"
)
@click.option("--output", default="REPORT.md", metavar="PATH", show_default=True, help="the report to write")
@click.option("--check", is_flag=True, help="write nothing; exit 1 and name what is stale")
def report(results_dir: str, output: str, check: bool) -> None:
    """Make REPORT.md, its figures and README.md's table from the records, or check that they are true."""
    from bench.report.build import Report, ReportError

    folder = Path(results_dir)
    if not folder.is_dir() and results_dir != "results":
        raise click.UsageError(f"--results-dir: there is no folder {results_dir}")
    made = Report(folder, Path(output))
    for line in made.problems:
        click.echo(f"left out: {line}", err=True)
    if check:
        _check(made.stale())
        return
    try:
        for line in made.write():
            click.echo(line, err=True)
    except (ReportError, OSError) as error:
        raise click.UsageError(str(error)) from None
    click.echo(f"{output}: {len(made.machines)} machine(s), {len(made.pictures)} figure(s)")


def _check(stale: list[str]) -> None:
    for line in stale:
        click.echo(f"{line}: run python -m bench report", err=True)
    sys.exit(1 if stale else 0)
