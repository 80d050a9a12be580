"""Results of one run: collected and judged, then kept as JSON and as a drawing."""

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.disk import DiskFigures, measure_disk
from benchmarks.figures import Figure, percentile
from benchmarks.plot import svg

_UNSTEADY: Final = 2.0
"""A disk whose figures differ more before and after a measurement is no measure for it."""


@dataclass(slots=True)
class Results:
    """What is measured in *directory*, on whose disk all is given in R and F."""

    directory: Path
    disk: DiskFigures
    figures: list[Figure]

    def latency(self, name: str, times: Sequence[float], *, aim_f: float | None = None) -> None:
        for percent in (50, 99):
            value = percentile(times, percent)
            ratio = value / self.disk.sync_s
            judged = aim_f is not None and percent == 50
            aim = f"<= {aim_f:g} F" if judged else ""
            met = ratio <= aim_f if aim_f is not None and judged else None
            figure = Figure(f"{name} p{percent}", value * 1e3, "ms", ratio, "F", aim, met)
            self.figures.append(figure)

    def share(
        self, name: str, bytes_per_s: float, *, copies: int, aim: float | None = None
    ) -> None:
        """Report MB/s as a share of R/*copies*: what is added is written so many times."""
        ratio = bytes_per_s / (self.disk.bytes_per_s / copies)
        unit = f"R/{copies}"
        shown = "" if aim is None else f">= {aim:g} {unit}"
        met = None if aim is None else ratio >= aim
        self.figures.append(Figure(name, bytes_per_s / 1e6, "MB/s", ratio, unit, shown, met))

    def at_least(self, name: str, value: float, unit: str, aim: float) -> None:
        met = value >= aim
        self.figures.append(Figure(name, value, unit, value / aim, "aims", f">= {aim:,g}", met))

    def at_most(self, name: str, value: float, unit: str, aim: float) -> None:
        met = value <= aim
        self.figures.append(Figure(name, value, unit, value / aim, "aims", f"<= {aim:,g}", met))

    def duration(self, name: str, seconds: float) -> None:
        self.figures.append(Figure(name, seconds * 1e3, "ms", seconds / self.disk.sync_s, "F"))

    def note(self, name: str, value: float, unit: str) -> None:
        self.figures.append(Figure(name, value, unit))

    def begin(self, section: str, seconds: float) -> None:
        """Measure the disk again, and say under which conditions *section* is measured.

        A disk that others use too is another disk a minute later."""
        self.disk = measure_disk(self.directory, seconds)
        rate, sync_s, load = self.disk.bytes_per_s, self.disk.sync_s, os.getloadavg()[0]
        disk = f"R {rate / 1e6:,.0f} MB/s, F {sync_s * 1e3:.3f} ms"
        print(f"{datetime.now(UTC):%H:%M:%S} {section}: {disk}, load {load:.2f}", file=sys.stderr)
        self.note(f"R before {section}", rate / 1e6, "MB/s")
        self.note(f"F before {section}", sync_s * 1e3, "ms")
        self.note(f"load before {section}", load, "")

    def end(self, section: str, seconds: float, first: int) -> None:
        """Measure the disk once more: if it changed, what was given in it is not judged.

        *first*: the index of the first figure of *section*."""
        before, after = self.disk, measure_disk(self.directory, seconds)
        self.note(f"R after {section}", after.bytes_per_s / 1e6, "MB/s")
        self.note(f"F after {section}", after.sync_s * 1e3, "ms")
        units = set()
        if not _alike(before.bytes_per_s, after.bytes_per_s):
            units.add("R")
        if not _alike(before.sync_s, after.sync_s):
            units.add("F")
        for index, figure in enumerate(self.figures[first:], first):
            if figure.met is not None and figure.ratio_unit.partition("/")[0] in units:
                aim = f"{figure.aim}, disk unsteady"
                self.figures[index] = replace(figure, met=None, aim=aim)

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Yield a new directory on the disk that is measured; it is removed in the end."""
        path = Path(tempfile.mkdtemp(prefix="bench-", dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path)


def _alike(before: float, after: float) -> bool:
    return max(before, after) <= _UNSTEADY * min(before, after)


def keep(figures: Sequence[Figure], sizes: Mapping[str, object], path: Path) -> None:
    """Write *path* as JSON, and a drawing beside it."""
    kept = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "load_after": os.getloadavg()[0],
        "sizes": sizes,
        "figures": [asdict(figure) for figure in figures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")
    path.with_suffix(".svg").write_text(svg(figures))
    print(f"kept as {path} and {path.with_suffix('.svg')}")
