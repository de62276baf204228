"""What this machine is, asked once per command from a process that may import torch."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from bench.launch import probe_environment
from bench.processes import Stop
from bench.registry import VARIANTS_DIR

PROBE_TIMEOUT_S = 180.0


class ProbeError(Exception):
    """torch is not there or does not work. One line, for the user."""


def probe(stop: Stop) -> dict[str, Any]:
    """The `environment` part of a record, as a variant started here would write it."""
    child = subprocess.Popen(
        [sys.executable, "-m", "core.environment"],
        env=probe_environment(os.environ),
        cwd=VARIANTS_DIR,  # -m looks there first, and the user's folder may have a `core` of its own
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PROBE_TIMEOUT_S
    while True:
        try:
            output, errors = child.communicate(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            if stop or time.monotonic() > deadline:
                child.kill()
                child.communicate()
                raise ProbeError(f"importing torch took longer than {PROBE_TIMEOUT_S:.0f} s") from None
    if child.returncode:
        raise ProbeError(_last_line(errors) or f"the probe of this machine ended with {child.returncode}")
    try:
        return json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        raise ProbeError(f"the probe of this machine printed no JSON: {_last_line(output)}") from None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def slug(environment: dict[str, Any]) -> str:
    """A folder name for this machine: "amd-epyc-2-cores", "h200-x1-intel-xeon-16-cores"."""
    cores = environment["usable_cores"]
    cpu = re.sub(r"\d+-Core|Processor|CPU|@.*", "", environment["cpu"] or environment["architecture"])
    gpus = Counter(re.sub(r"NVIDIA|GeForce|Tesla", "", name).strip() for name in environment["gpus"])
    parts = [
        *(f"{name} x{count}" for name, count in sorted(gpus.items())),
        cpu,
        f"{cores} core{'s' * (cores > 1)}",
    ]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")
