"""Reads the records of studies again."""

from collections.abc import Sequence
from pathlib import Path

from bench import records
from bench.records import Record

KINDS = ("noise", "comm", "scale", "race")


def read(machine_folder: Path, kind: str) -> tuple[list[Record], list[str]]:
    """The records of all studies of that kind on a machine by time, and a line for each file that is none."""
    folder = machine_folder / kind
    return records.read_in(folder) if folder.is_dir() else ([], [])


def latest(found: Sequence[Record]) -> list[Record]:
    """The records of the newest command among them that was not broken off; of the newest if all were."""
    commands: dict[str, list[Record]] = {}
    for record in found:
        commands.setdefault(record.run["command_id"], []).append(record)
    whole = [runs for runs in commands.values() if all(run.status != "interrupted" for run in runs)]
    return (whole or list(commands.values()) or [[]])[-1]
