"""Records as data frames, for a notebook or another program: one line a run, or one a step."""

import sys
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from bench import derive, records
from bench.records import Record


def runs(found: Iterable[Record]) -> pd.DataFrame:
    """One line a run: what `bench run --json` says of it, with its machine, commit and time."""
    lines = []
    for record in found:
        row = derive.row([record])
        lines.append(
            {
                "machine": _machine(record),
                "study": (record.run.get("study") or {}).get("kind"),
                "started_at": record.raw.get("started_at"),
                "commit": record.run.get("commit"),
                "dirty": record.run.get("dirty"),
                "repeat": record.run.get("repeat"),
                **{name: getattr(row, name) for name in _PLAIN},
                **{f"step_{name}_ms": (row.step_ms or {}).get(name) for name in ("p50", "p90", "p99")},
                "parity_class": (row.parity or {}).get("class"),
                "parity_max_abs_diff": (row.parity or {}).get("max_abs_diff"),
                "record": record.path.name,
            }
        )
    return pd.DataFrame(lines)


def _machine(record: Record) -> str:
    """The folder of its machine: the records of a study lie one deeper."""
    folder = record.path.parent
    return folder.parent.name if record.run.get("study") else folder.name


_PLAIN = (
    "variant",
    "status",
    "reason",
    "world_size",
    "device",
    "backend",
    "precision",
    "global_batch_size",
    "images_per_s",
    "warmup_steps",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_rss_bytes",
    "final_loss",
    "test_accuracy",
)


def steps(found: Iterable[Record]) -> pd.DataFrame:
    """One line a step of each rank of each run that was ok: `step` from 1, `step_ms`, `loss` of that rank."""
    frames = [
        pd.DataFrame(
            {
                "machine": record.path.parent.name,
                "variant": record.variant,
                "record": record.path.name,
                "rank": part["rank"],
                "step": range(1, len(part["loss"]) + 1),
                "step_ms": part["step_ms"],
                "loss": part["loss"],
            }
        )
        for record in found
        if record.ok
        for part in record.raw["ranks"]
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def write(results_dir: Path, what: str, output: str) -> tuple[int, list[str]]:
    """Write `runs` or `steps` of all records as CSV to the path `output`, or to stdout for "-".

    Gives the number of lines, and a line for each file that is no record.
    """
    found, problems = records.read_all(results_dir)
    frames = []
    for record in found:
        try:
            frames.append({"runs": runs, "steps": steps}[what]([record]))
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            problems.append(f"{record.path.name}: {type(error).__name__} {error}")
    filled = [frame for frame in frames if len(frame)]
    frame = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()
    frame.to_csv(sys.stdout if output == "-" else output, index=False)
    return len(frame), problems
