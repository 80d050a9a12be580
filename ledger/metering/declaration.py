"""The declaration of a metric: a name with its unit, one sentence, labels, and where it is read.

Whoever counts adds to a plain number, once per group, batch or event and never per record, and
takes no lock; whoever asks reads from another thread. So each number of an object is written by
one thread only, and what is read together need not fit together.

Labels are few and bounded: nothing has a series for each ledger. Logs have one each while
this process has them open, `SERIES_MAX` at most: the others are put together under `OTHERS`.

`Exposed` is what a process shows of itself: its metrics, and whether it is of use yet.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from ledger.log_events import get_logger

SERIES_MAX: Final = 100
OTHERS: Final = ".others"
"""No log can have this name."""
SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Bounds of buckets for what takes time."""
LONG_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0)
"""The same, for what may take minutes."""
BYTES: Final = tuple(float(4**power) for power in range(4, 14))
"""256 B to 64 MiB."""
COUNTS: Final = tuple(float(4**power) for power in range(9))
"""1 to 65,536."""
Source = TypeVar("Source")
Live_ = TypeVar("Live_")
_log = get_logger(__name__)


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Buckets:
    """How often a value was at most each of *bounds*, which ascend; the rest has a bucket, too."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        """All values together."""

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Tally:
    """A number of this process that only grows, by the values of its labels.

    Event loops on several threads may add to it: nothing comes between the reading and the writing
    of an addition, as long as the interpreter has its lock."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def add(self, *labels: str, by: float = 1) -> None:
        self.values[labels] += by


Number = int | float
Value = Number | Buckets | Mapping[str, Number] | dict[tuple[str, ...], Number] | None
"""Of a metric with one label: by its value; with several: by all of them. None: it has no value in
this process now."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    name: str
    """By the conventions of Prometheus: base units (seconds, bytes), counters end in _total."""
    kind: MetricKind
    says: str
    """One sentence."""
    labels: tuple[str, ...]
    read: Callable[[Source], Value]
    """Called on any thread; asks no disk and waits for nothing."""


class MetricRegistry(Generic[Source]):
    """The metrics of one package about objects of one kind. Of what belongs to the process as a
    whole, `tally` and `spread` make the number, too."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric[Source]] = {}

    def __iter__(self) -> Iterator[Metric[Source]]:
        return iter(tuple(self._metrics.values()))

    def counter(self, name: str, says: str, read: Callable[[Source], Value], *labels: str) -> None:
        assert name.endswith("_total"), name
        self._declare(Metric(name, MetricKind.COUNTER, says, labels, read))

    def gauge(self, name: str, says: str, read: Callable[[Source], Value], *labels: str) -> None:
        self._declare(Metric(name, MetricKind.GAUGE, says, labels, read))

    def histogram(self, name: str, says: str, read: Callable[[Source], Buckets]) -> None:
        self._declare(Metric(name, MetricKind.HISTOGRAM, says, (), read))

    def tally(
        self, name: str, says: str, *labels: str, known: Iterable[tuple[str, ...]] = ()
    ) -> Tally:
        """Declare a counter of this process; return it.

        *known*: labels that are shown as 0 from the start. A series that appears with its first
        event has not increased in the eyes of Prometheus: an alert would miss it."""
        tally = Tally()
        for values in known if labels else [()]:
            tally.add(*values, by=0)
        self.counter(name, says, lambda _: tally.values, *labels)
        return tally

    def spread(self, name: str, says: str, bounds: Sequence[float]) -> Buckets:
        """Declare a histogram of this process; return it."""
        buckets = Buckets(bounds)
        self.histogram(name, says, lambda _: buckets)
        return buckets

    def _declare(self, metric: Metric[Source]) -> None:
        assert metric.name not in self._metrics, metric.name
        self._metrics[metric.name] = metric


class Live(Generic[Live_]):
    """Objects of this process that are open. Holds none that nobody else holds."""

    def __init__(self) -> None:
        self._found: WeakValueDictionary[int, Live_] = WeakValueDictionary()

    def add(self, each: Live_) -> None:
        self._found[id(each)] = each

    def remove(self, each: Live_) -> None:
        self._found.pop(id(each), None)

    def __iter__(self) -> Iterator[Live_]:
        """Yield them; from any thread."""
        found = (reference() for reference in self._found.valuerefs())
        return (each for each in found if each is not None)


def bounded(
    values: Iterable[tuple[str, Number]], together: Callable[[Number, Number], Number]
) -> dict[str, Number]:
    """Return *values* by name, those of the same name put *together*; at most `SERIES_MAX`, and one
    for all `OTHERS`."""
    found: dict[str, Number] = {}
    for given, value in values:
        name = given if given in found or len(found) < SERIES_MAX else OTHERS
        found[name] = together(found[name], value) if name in found else value
    return found


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    """Whether it does what it is there for."""
    state: str
    """In a word or two."""
    reasons: tuple[str, ...] = ()
    """Why it is as it is, if somebody could mind."""


STARTING: Final = Readiness(ready=False, state="starting")


class Exposed:
    """Changed by the process, read by whoever asks, on any thread."""

    def __init__(self) -> None:
        self._sources: tuple[tuple[tuple[Metric[Any], ...], object], ...] = ()
        self._unreadable: dict[str, None] = {}
        self.readiness: Callable[[], Readiness] = lambda: STARTING
        """Says at once whether the process is ready; must not wait for anything."""

    def add(self, metrics: Iterable[Metric[Any]], source: object = None) -> None:
        """Show *metrics* of *source* from now on; each name once in a process."""
        self._sources = (*self._sources, (tuple(metrics), source))

    def read(self) -> Iterator[tuple[Metric[Any], Value]]:
        """Yield all metrics and what they are now. One that cannot be read just now, as what it
        belongs to is being closed, is left out."""
        for metrics, source in self._sources:
            for metric in metrics:
                try:
                    value = metric.read(source)
                except Exception as error:  # noqa: BLE001 - must not take the others with it
                    if metric.name not in self._unreadable:
                        self._unreadable[metric.name] = None
                        _log.warning("metric_not_read", metric=metric.name, reason=repr(error))
                    continue
                yield metric, value
