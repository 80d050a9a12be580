"""Appends that reach the packer together, and where each of them is found afterwards.

One list takes the records, so an append is one step that cannot be interrupted in its middle, and
their columns are made for thousands at once."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from dlog.columns import Columns, Row
from dlog.outcome import Outcome
from dlog.protocol.packer import ENTRY_BYTES_FULL, RECORD_CHARGE


def charge_of(record: Row) -> int:
    """Return what *record* counts while it is pending."""
    payload, key, _, _, headers = record
    return len(payload) + len(key or b"") + len(headers or b"") + RECORD_CHARGE


class Gathering:
    """Filled by the loop, or by threads under a lock; then taken and placed, once, by the loop."""

    __slots__ = (
        "_each",
        "_outcome",
        "_slot",
        "_watchers",
        "charge",
        "expected_offset",
        "limit",
        "records",
    )

    def __init__(self, expected_offset: int | None) -> None:
        self.expected_offset = expected_offset
        """Of its only record; None: of any."""
        self.records: list[bytes | Row] = []
        self.charge = 0
        """Bytes that the records count."""
        self.limit = ENTRY_BYTES_FULL if expected_offset is None else 0
        """Beyond that nothing more is put into it; the first record has no limit."""
        self._outcome: Outcome | None = None
        self._slot = 0
        self._each: Sequence[tuple[Outcome, int]] = ()
        self._watchers: list[Callable[[], None]] = []

    @classmethod
    def placed(cls, outcome: Outcome) -> Self:
        """Return one whose records have *outcome*, from its first slot on."""
        gathering = cls(None)
        gathering.place(outcome, 0)
        return gathering

    @property
    def count(self) -> int:
        """Records in it that were not taken."""
        return len(self.records)

    def take(self) -> Columns:
        """Return the records, which are not kept here: whoever has a future may keep it long."""
        records, self.records = self.records, []
        return Columns.of(records)

    def place(self, outcome: Outcome, slot: int) -> None:
        """Tell that its records have the slots of *outcome* from *slot* on."""
        self._slot, self._outcome = slot, outcome
        self._notify()

    def place_each(self, places: Sequence[tuple[Outcome, int]]) -> None:
        """Tell each record's outcome and slot in it: not all were taken."""
        self._each = places
        self._notify()

    def find(self, index: int) -> tuple[Outcome, int] | None:
        """Return the outcome of a record, and its slot in that; None if it is not placed yet."""
        if self._outcome is not None:
            return self._outcome, self._slot + index
        return self._each[index] if self._each else None

    def watch(self, index: int, call: Callable[[], None]) -> None:
        """Call *call* once the outcome of a record is known; as `Outcome.watch`, perhaps twice."""
        look = partial(self._look, index, call)
        self._watchers.append(look)  # before looking, as whoever places looks here afterwards
        look()

    def _look(self, index: int, call: Callable[[], None]) -> None:
        found = self.find(index)
        if found is not None:
            found[0].watch(call)

    def _notify(self) -> None:
        for look in tuple(self._watchers):
            look()
        self._watchers.clear()
