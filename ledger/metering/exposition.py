"""What a process shows of itself: its metrics, and whether it is of use yet."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ledger.log_events import get_logger
from ledger.metering.declaration import Metric, Value

_log = get_logger(__name__)


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
