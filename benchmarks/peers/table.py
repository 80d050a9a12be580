"""Samples as a page and as a drawing: medians and ranges, ratios dlog/peer, and the aims."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure
from benchmarks.peers.metrics import AIMS, METRICS, Aim
from benchmarks.peers.samples import Samples, Spread
from benchmarks.peers.systems import OURS, SYSTEMS
from benchmarks.plot import svg

NOTES: Final = Path(__file__).parent / "notes.md"
"""What people say of the figures of one day."""
_HEAD: Final = """# dlog beside BookKeeper, DistributedLog and Kafka

`make bench-peers`: {runs} runs on one machine, {first} to {last}. Three servers each, three copies
of which two are acknowledged, synced before that; one writer. In each round every system is
measured once, in turns; a ratio is dlog/peer within one round. Medians, and in brackets ranges of
all rounds.

Times count from when a record was due; what is due within half a millisecond leaves together. A
tail and its writer share a process. Takeover lasts until the first record of the new owner is
acknowledged: after a writer that crashed, of Kafka after the leading broker was killed. Metadata of
dlog and of BookKeeper are on one ZooKeeper, whose costs are not counted.
"""


def page(samples: Samples) -> str:
    """Return the text of `peers.md`."""
    runs = sorted({each.run for each in samples.all})
    head = _HEAD.format(runs=len(runs), first=runs[0], last=runs[-1])
    parts = [head, *_aims(samples), "", NOTES.read_text(), *_rows(samples), *_settings()]
    return "\n".join(parts) + "\n"


def summary(samples: Samples) -> str:
    """Return the rows alone, for a terminal."""
    return "\n".join(_rows(samples))


def _rows(samples: Samples) -> Iterator[str]:
    for name, metric in METRICS.items():
        found = {each: samples.spread(name, each) for each in SYSTEMS}
        spreads = {system: spread for system, spread in found.items() if spread is not None}
        if not spreads:
            continue
        ours = [each for each in OURS if each in spreads]
        yield f"## {metric.title}\n"
        yield (
            "".join(f"| {each} " for each in ("", metric.unit, *[f"{o} / it" for o in ours])) + "|"
        )
        yield "|---" * (2 + len(ours)) + "|"
        for system, spread in spreads.items():
            ratios = [None if system in OURS else samples.ratio(name, o, system) for o in ours]
            cells = [
                system,
                _shown(spread),
                *["" if each is None else _shown(each) for each in ratios],
            ]
            yield "".join(f"| {each} " for each in cells) + "|"
        yield ""


def _line(*cells: str) -> str:
    return "".join(f"| {each} " for each in cells) + "|"


def _shown(spread: Spread) -> str:
    if spread.least == spread.most:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.least)} to {number(spread.most)})"


def number(value: float) -> str:
    """Return *value* with three digits, or all that are before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def judged(samples: Samples) -> Iterator[tuple[Aim, str, Spread, bool]]:
    """Yield each aim with a peer, the ratio to it, and whether that is reached."""
    for aim in AIMS:
        more = METRICS[aim.metric].more_is_better
        found = {each: samples.ratio(aim.metric, aim.ours, each) for each in aim.peers}
        ratios = {peer: ratio for peer, ratio in found.items() if ratio is not None}
        if aim.best and ratios:
            pick = min if more else max  # the best peer is the one that we compare worst with
            best = pick(ratios, key=lambda peer: ratios[peer].median)
            ratios = {best: ratios[best]}
        for peer, ratio in ratios.items():
            met = ratio.median >= aim.bound if more else ratio.median <= aim.bound
            yield aim, peer, ratio, met


def _aims(samples: Samples) -> Iterator[str]:
    yield "## Aims\n"
    yield "| what | of | beside | ratio | aim | |"
    yield "|---|---|---|---|---|---|"
    for aim, peer, ratio, met in judged(samples):
        metric = METRICS[aim.metric]
        beside = f"{peer}, the best" if aim.best else peer
        verdict = "met" if met else "missed"
        yield _line(metric.title, aim.ours, beside, _shown(ratio), _bound(aim), verdict)


def _bound(aim: Aim) -> str:
    return f"{'>=' if METRICS[aim.metric].more_is_better else '<='} {aim.bound:g}"


def _settings() -> Iterator[str]:
    yield "## What each was configured with\n"
    for name, system in SYSTEMS.items():
        yield f"- **{name}**: {system.told}"


def drawing(samples: Samples) -> str:
    """Return an SVG of how far each aim is reached."""
    figures: Sequence[Figure] = [
        Figure(
            f"{METRICS[aim.metric].title}: {aim.ours} / {peer}",
            ratio.median,
            "times",
            ratio.median,
            "",
            _bound(aim),
            met,
        )
        for aim, peer, ratio, met in judged(samples)
    ]
    return svg(figures)
