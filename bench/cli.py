"""The command line: `python -m bench list | diff | run | ...`.

`--help`, `list` and wrong flags must answer at once, so whatever takes long to import (numpy, rich, psutil)
is imported inside the command that needs it (bench/commands/).
"""

import sys
from typing import NoReturn

import click

from bench.commands.diff import diff
from bench.commands.export import export
from bench.commands.list import list_
from bench.commands.report import report
from bench.commands.run import run


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def bench() -> None:
    """Train one MNIST network in many parallel and mixed-precision ways, and compare them."""


for _command in (list_, diff, run, report, export):
    bench.add_command(_command)


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
