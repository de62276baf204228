"""How values are written in the report, and what stands in a cell that has none."""

from bench.markdown import code, escape
from bench.report.collect import Entry
from bench.report.compare import Ratio, incomparable

NOTHING = "–"  # noqa: RUF001  the row's status says why
_MIB = 2**20


def whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def decimals(value: float | None, places: int) -> str:
    return NOTHING if value is None else f"{value:.{places}f}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2%}"


def power(value: float | None) -> str:
    """A difference, which may be of any size: 0, or two digits such as 3.1e-06."""
    return NOTHING if value is None else f"{value:.1e}" if value else "0"


def milliseconds(value: float) -> str:
    """Three digits: 1.23, 12.3, 123, 1,234."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def mib(value: int | None) -> str:
    return NOTHING if value is None else f"{value / _MIB:,.0f}"


def gib(value: int | None) -> str:
    return NOTHING if value is None else f"{value / 2**30:.1f} GiB"


def count(number: int, noun: str) -> str:
    """`1 repeat`, `3 repeats`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def factor(ratio: Ratio) -> str:
    """A ratio with the interval that its repeats allow."""
    return f"{ratio} ({ratio.interval})" if ratio.low < ratio.high else str(ratio)


def name(entry: Entry) -> str:
    return code(entry.label)


def names(entries: list[Entry]) -> str:
    return ", ".join(name(entry) for entry in entries)


def status(entry: Entry) -> str:
    """`ok` with what its reader must know, or what went wrong."""
    if entry.failure:
        return escape(entry.failure)
    return f"ok; {escape(entry.row.reason)}" if entry.row.reason else "ok"


def origin(entry: Entry) -> str:
    """Where the numbers of a row come from."""
    if not entry.raws:
        return "unavailable"
    return "emulated" if entry.emulated else "measured"


def why_no_ratio(entry: Entry, reference: Entry | None) -> str:
    """Why a row with numbers is not held against `single`."""
    return "`single` did not finish" if reference is None else escape(incomparable(entry, reference))


def threads(entry: Entry) -> str:
    """`2 x 1`: ranks, and the threads of each."""
    if not entry.raws:
        return NOTHING
    each = sorted({part.get("threads") for part in entry.last["ranks"]}, key=str)
    return f"{entry.row.world_size} x {' or '.join(map(str, each))}"
