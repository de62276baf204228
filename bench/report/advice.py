"""The recommendation: sentences that follow from the numbers of one job, each with its condition."""

from statistics import median

from bench.markdown import bullets, escape, listing
from bench.report.cells import count, factor, milliseconds, name, names, whole
from bench.report.collect import Entry, Job
from bench.report.compare import differs, incomparable, ratio, same_training, verdict
from bench.report.doubts import doubts

REPEATS_NEEDED = 2


def advice(job: Job, parents: dict[str, str | None], methods: set[str], machine: str) -> str:
    """Which method to use. `methods` may be recommended: a probe or a pitfall is none."""
    reference = job.reference
    if reference is None:
        return (
            "No recommendation: there is no run of `single` with these flags that went well, against "
            "which the others could be held. `python -m bench run --variant all --repeats 3` makes one."
        )
    ranked = [entry for entry in job.timed if not entry.unranked and ratio(entry, reference)]
    candidates = [entry for entry in ranked if entry.variant in methods]
    settled = [entry for entry in candidates if len(entry.rates) >= REPEATS_NEEDED]
    once = [entry for entry in candidates if entry not in settled]
    if len(reference.rates) < REPEATS_NEEDED:
        lines = [_too_few([reference, *(entry for entry in once if entry is not reference)])]
    elif not settled:
        lines = [_too_few(once) if once else "**No ranking**: no row here can be in one, as said below."]
    else:
        lines = _winners(settled, reference)
        if once:
            lines.append(f"Not ranked: {names(once)}, with one repeat: `--repeats 3` puts them in.")
    lines += _gains(ranked, parents, reference)
    lines += [
        f"Not ranked: {name(entry)}, {escape(entry.unranked)}." for entry in job.entries if entry.unranked
    ]
    lines += [
        f"Not ranked: {name(entry)}, {escape(reason)}."
        for entry in job.timed
        if not entry.unranked and (reason := incomparable(entry, reference))
    ]
    found = doubts(job)
    if found:
        lines.insert(0, f"**Measure again before you act on this**: {'; '.join(found)}.")
    return f"On this machine ({escape(machine)}), with {_job(job)}:\n\n{bullets(lines)}\n\n{_CONDITIONS}"


_CONDITIONS = (
    "This holds for this machine, this model and this batch size. The model is tiny: one whose steps take "
    "longer gains more from several ranks. Measure yours with `--model package.module:Class`."
)


def _job(job: Job) -> str:
    config = job.config
    images = config.get("train_images")
    return (
        f"{escape(config.get('model'))} on {escape(config.get('dataset'))} "
        f"({f'the first {images:,}' if images else 'all'} training images, "
        f"{count(config.get('epochs') or 1, 'epoch')}) and a global batch size of "
        f"{config.get('global_batch_size')}"
    )


def _too_few(candidates: list[Entry]) -> str:
    return (
        f"**No ranking yet**: one good repeat of {names(candidates)} is all there is, so how far another "
        "would differ is not known. `--repeats 3` settles it."
    )


def _winners(candidates: list[Entry], reference: Entry) -> list[str]:
    """The fastest with the training of `single`, and the fastest of all where that is another."""
    safe = _fastest([entry for entry in candidates if same_training(entry)])
    best = _fastest(candidates)
    fastest = f"**Fastest of all: {_praise(best, reference)}**{_ties(best)} {_price(best[0], reference)}"
    if not safe:
        return ["**None of the ranked rows has the same training as `single`.**", fastest]
    if safe[0] is reference and reference not in best[:1]:
        first = (
            f"**Nothing with the same training as `single` is faster than it**: {_praise(safe, reference)}"
        )
    else:
        first = f"**Fastest with the same training as `single`: {_praise(safe, reference)}**"
    lines = [first + _ties(safe)]
    if best[0] is safe[0]:
        lines[0] += " It is the fastest of all, too."
        others = [entry for entry in best if entry not in safe]
        if others:
            lines[0] += f" Not told apart from it, with another training: {names(others)}."
    elif safe[0] in best:
        lines.append(
            "No other training is faster beyond the spread of the repeats: that of "
            f"{listing([name(entry) for entry in best if entry not in safe])} is not told apart from it."
        )
    else:
        lines.append(fastest)
    return lines


def _fastest(entries: list[Entry]) -> list[Entry]:
    """The fastest by its median, then those that its repeats do not set it apart from."""
    if not entries:
        return []
    first, *others = sorted(entries, key=lambda entry: -median(entry.rates))
    return [first, *(entry for entry in others if not differs(first.rates, entry.rates))]


def _praise(winners: list[Entry], reference: Entry) -> str:
    best = winners[0]
    against = ratio(best, reference)
    times = "the reference itself" if best is reference else f"{factor(against)} `single`"
    return f"{name(best)}, {whole(median(best.rates))} images/s, {times}."


def _ties(winners: list[Entry]) -> str:
    if len(winners) == 1:
        return ""
    return f" Not told apart from {listing([name(entry) for entry in winners[1:]])}: their repeats overlap."


def _price(entry: Entry, reference: Entry) -> str:
    """How the training of the winner differs from that of `single`."""
    parity = entry.row.parity or {}
    if parity.get("max_abs_diff") is None:
        return "Whether it trains as `single` does is not known: " + escape(
            parity.get("reason") or "not compared."
        )
    return (
        f"Its training is not that of `single` ({escape(parity['class'])}: the loss differs by up to "
        f"{parity['max_abs_diff']:.1e}); its test accuracy is {entry.row.test_accuracy:.2%}, that of "
        f"`single` {reference.row.test_accuracy:.2%} (one seed: another may turn that difference round)."
    )


def _gains(ranked: list[Entry], parents: dict[str, str | None], reference: Entry) -> list[str]:
    """What mixed precision and what further ranks bring, each against the parent it is added to."""
    by_name = {entry.variant: entry for entry in ranked}
    precision, ranks = [], []
    for entry in ranked:
        parent = by_name.get(parents.get(entry.variant) or "")
        if parent is None:
            continue
        if entry.row.world_size != parent.row.world_size:
            ranks.append((entry, parent))
        elif entry.row.precision != parent.row.precision:
            precision.append((entry, parent))
    lines = []
    if precision:
        formats = listing(sorted({entry.row.precision for entry, _ in precision}))
        lines.append(f"**Mixed precision** ({formats}): {_pairs(precision)}.")
    if ranks:
        lines.append(f"**More ranks**: {_pairs(ranks)}.{_efficiency(ranks)}")
    slower = [entry for entry in ranked if entry is not reference and verdict(entry, reference) == "slower"]
    return lines + why_slower(slower, reference)


def _pairs(pairs: list[tuple[Entry, Entry]]) -> str:
    return "; ".join(
        f"{name(entry)} is {factor(ratio(entry, parent))} {name(parent)} ({verdict(entry, parent)})"
        for entry, parent in pairs
    )


def _efficiency(pairs: list[tuple[Entry, Entry]]) -> str:
    """Scaling efficiency, said where there is a speed-up that it qualifies."""
    parts = [
        f"{name(entry)} {ratio(entry, parent).value * parent.row.world_size / entry.row.world_size:.0%}"
        for entry, parent in pairs
        if verdict(entry, parent) == "faster"
    ]
    return f" Scaling efficiency (strong: the global batch is fixed): {', '.join(parts)}." if parts else ""


def why_slower(slower: list[Entry], reference: Entry) -> list[str]:
    """The reasons why these rows lie below 1x: probable ones, reasoned from the records and not measured."""
    several = [entry for entry in slower if entry.row.world_size > 1]
    alone = [
        entry
        for entry in slower
        if entry.row.world_size == 1 and entry.row.precision != reference.row.precision
    ]
    lines = []
    if several:
        lines.append(f"**Slower than `single`**: {names(several)}. {_why_ranks(several, reference)}")
    if alone:
        lines.append(
            f"**Slower than `single`**: {names(alone)}. Probably casting between float32 and 16 bits "
            "costs more than the narrower arithmetic saves on layers this small, or this processor has "
            "no fast kernels for it."
        )
    return lines


def _why_ranks(several: list[Entry], reference: Entry) -> str:
    if reference.row.device == "cpu":
        cores = reference.last["environment"]["usable_cores"]
        return (
            f"Probably because all ranks share the {count(cores, 'core')} that `single` uses alone, so "
            "splitting the batch wins no arithmetic; the all-reduce of every step and the second process "
            "come on top."
        )
    return (
        f"A step of `single` takes {milliseconds(reference.row.step_ms['p50'])} ms (p50): probably too "
        "short to hide the all-reduce and the launches of each rank behind."
    )
