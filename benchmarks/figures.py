"""Results of measurements: their ratio to what the disk gives, as a table or as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float
    unit: str
    ratio: float | None = None
    """*value* in R or in F, whichever is its kind."""
    ratio_unit: str = ""
    aim: str = ""
    """What is asked for, if anything is."""
    met: bool | None = None
    """Whether it is reached; None where nobody judged that."""
    spread: tuple[float, float] | None = None
    """The lowest and the highest of the values whose median *value* is."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that *percent* of *values* are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def print_table(figures: Sequence[Figure]) -> None:
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:8.2f} {figure.ratio_unit}"
        line = f"{figure.name:{width}} {_number(figure.value):>10} {figure.unit:8} {ratio:14}"
        if figure.spread is not None:
            line += f" {' to '.join(map(_number, figure.spread)):16}"
        verdict = {None: "", True: "met", False: "MISSED"}[figure.met]
        print(f"{line} {figure.aim:20} {verdict}".rstrip())


def print_json(figures: Sequence[Figure]) -> None:
    print(json.dumps([asdict(figure) for figure in figures], indent=1))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
