"""Which bookies failed of late, so that others are picked while there are others.

Each bookie has a count of errors that halves every `half_life_s`. From `errors_min` on it is
quarantined, the longer the higher its count: a bookie that restarts is avoided for half a
minute, one that keeps failing for half an hour. Errors in one burst count once, because all
that was under way to a bookie fails together.

Invariants:
    at most `bookies_max` bookies are remembered
    a bookie is never quarantined for longer than `quarantine_s_max` after its last error
"""

from dataclasses import dataclass
from typing import Final

from ledger.ids import BookieId
from ledger.requests import Status

ERRORS: Final = frozenset({Status.UNREACHABLE, Status.IO_ERROR, Status.DAMAGED, Status.READ_ONLY})
"""What speaks against a bookie. Refusals that are the protocol's own do not, nor does being
busy, which passes by itself."""

_FORGOTTEN: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineConfig:
    errors_min: float = 1.0
    """Decayed errors from which on a bookie is quarantined."""
    half_life_s: float = 60.0
    """After how long an error counts half."""
    quarantine_s: float = 30.0
    """How long at *errors_min*; doubles with each error more."""
    quarantine_s_max: float = 1800.0
    burst_s: float = 0.5
    """Errors of one bookie within this count once."""
    bookies_max: int = 1024

    def __post_init__(self) -> None:
        assert self.errors_min > 0
        assert self.half_life_s > 0
        assert 0 <= self.quarantine_s <= self.quarantine_s_max
        assert self.bookies_max > 0


@dataclass(slots=True)
class _Record:
    count: float
    counted_at: float
    until: float


class Quarantine:
    def __init__(self, config: QuarantineConfig | None = None) -> None:
        self._config = config or QuarantineConfig()
        self._records: dict[BookieId, _Record] = {}

    def reported(self, bookie: BookieId, status: Status, *, now: float) -> None:
        """Take note that *bookie* answered *status*."""
        if status not in ERRORS:
            return
        record = self._records.get(bookie)
        if record is None:
            self._make_room(now)
            record = self._records[bookie] = _Record(0.0, now, now)
        elif now - record.counted_at < self._config.burst_s:
            return
        record.count = self._decayed(record, now) + 1
        record.counted_at = now
        config = self._config
        if record.count >= config.errors_min:
            doublings = min(record.count - config.errors_min, 64.0)
            length_s = min(config.quarantine_s * 2.0**doublings, config.quarantine_s_max)
            record.until = max(record.until, now + length_s)

    def quarantined(self, *, now: float) -> tuple[BookieId, ...]:
        """Return the bookies that should be picked only if there are no others, sorted."""
        return tuple(sorted(b for b, record in self._records.items() if record.until > now))

    def _decayed(self, record: _Record, now: float) -> float:
        halvings = max(0.0, now - record.counted_at) / self._config.half_life_s
        return float(record.count * 0.5**halvings)

    def _make_room(self, now: float) -> None:
        """Forget who is as good as new; if all are remembered for a reason, the least."""
        if len(self._records) < self._config.bookies_max:
            return
        self._records = {
            bookie: record
            for bookie, record in self._records.items()
            if record.until > now or self._decayed(record, now) > _FORGOTTEN
        }
        if len(self._records) >= self._config.bookies_max:
            least = min(self._records, key=lambda bookie: (self._records[bookie].until, bookie))
            del self._records[least]
