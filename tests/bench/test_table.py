import io
from pathlib import Path

from bench.derive import Row, row
from bench.records import Record
from bench.table import json_rows, print_table
from tests.bench.fakes import raw_record

KEYS = (
    "variant status reason world_size device backend precision global_batch_size images_per_s step_ms "
    "warmup_steps peak_allocated_bytes peak_reserved_bytes peak_rss_bytes final_loss test_accuracy parity "
    "record"
)


def good(name: str = "ddp_syncbn", step_ms: float = 10.0, **run: object) -> Record:
    raw = raw_record(rank_changes={rank: {"step_ms": [step_ms] * 4} for rank in (0, 1)}, variant=name)
    parity = {
        "reference": "single-1.json",
        "class": "local batch norm",
        "max_abs_diff": 3.2e-3,
        "final_abs_diff": 1e-3,
        "tolerance": None,
        "reason": None,
    }
    raw["run"] = {"status": "ok", "reason": None, "parity": parity, **run}
    return Record(Path(f"results/amd-epyc-2-cores/{name}-20261201T042503Z-d669c838.json"), raw)


def text(*rows: Row) -> str:
    stream = io.StringIO()
    print_table(rows, stream)
    return stream.getvalue()


def test_json_has_exactly_the_promised_keys() -> None:
    (plain,) = json_rows([row([good()])])
    assert list(plain) == KEYS.split()
    assert list(plain["parity"]) == ["reference", "class", "max_abs_diff", "tolerance"]
    assert list(plain["step_ms"]) == ["p50", "p90", "p99"]
    assert plain["images_per_s"] == 12_800


def test_json_of_a_row_without_a_run() -> None:
    (plain,) = json_rows([Row("ddp", "interrupted", "not started")])
    assert list(plain) == KEYS.split()
    assert plain["images_per_s"] is None


def test_the_table_tells_all_and_fits_a_terminal() -> None:
    shown = text(row([good()]))
    table = [line for line in shown.splitlines() if not line.startswith("records and logs")]
    assert max(len(line.rstrip()) for line in table) <= 110
    for cell in ("12,800", "10.00", "RSS", "90.00%", "local batch norm (3.2e-03)", "ddp_syncbn-20261201"):
        assert cell in shown
    assert "records and logs are in results/amd-epyc-2-cores" in shown


def test_a_row_that_is_not_plain_says_why_below() -> None:
    failed = Row("ddp", "failed", "rank 1 was killed by SIGKILL")
    assert "ddp: rank 1 was killed by SIGKILL" in text(failed)


def test_repeats_show_their_spread() -> None:
    assert "±" not in text(row([good()]))
    assert "±5%" in text(row([good(step_ms=step) for step in (9.5, 10.0, 10.5)]))
