"""How the records of one entry ended: set once per entry, not once per record.

An append's future holds the outcome of its entry and its own slot in it; what it resolves to
is made when somebody asks. So an entry of thousands of records costs one assignment when it is
confirmed, and nothing per record, as long as nobody waits for a single one.

An outcome is settled once, by the loop. Other threads may watch it at any time: who watches
adds itself first and looks then, who settles does it in the other order, so none is missed; one
may be called twice.
"""

from collections.abc import Callable
from typing import Self

from dlog.position import Place, RecordId
from ledger.errors import LogError


class Outcome:
    __slots__ = ("_error_of", "_told", "_watchers", "place")

    def __init__(self) -> None:
        self.place: Place | None = None
        """Set once the entry is confirmed."""
        self._error_of: Callable[[int], LogError] | None = None
        self._told: Callable[[], None] | None = None
        self._watchers: list[Callable[[], None]] = []

    @classmethod
    def refused(cls, error: LogError, told: Callable[[], None] | None = None) -> Self:
        """Return the outcome of a record that was never taken."""
        outcome = cls()
        outcome.fail(lambda _: error, told)
        return outcome

    @property
    def done(self) -> bool:
        return self.place is not None or self._error_of is not None

    def confirm(self, offset: int, segment: int, entry: int) -> None:
        """Confirm the entry, with *offset* for its first record."""
        if self.place is None and self._error_of is None:
            self.place = Place(segment, entry, offset)
            self._notify()

    def fail(
        self, error_of: Callable[[int], LogError], told: Callable[[], None] | None = None
    ) -> None:
        """Fail the entry; *error_of* returns the error of the record in a slot.

        *told* is called, from any thread, when the application is given one (`tell`)."""
        if not self.done:
            self._told = told
            self._error_of = error_of
            self._notify()

    def record_id(self, slot: int) -> RecordId:
        """Return the id of the record in *slot*, or raise its error. Requires `done`."""
        place = self.place
        if place is None:
            error = self.tell(slot)
            assert error is not None, "the outcome is not known yet"
            raise error
        offset = place.first_offset + slot
        return RecordId(offset, place.dlsn(offset))

    def tell(self, slot: int) -> LogError | None:
        """Return what `error` returns, to the application."""
        error = self.error(slot)
        if error is not None and self._told is not None:
            self._told()
        return error

    def error(self, slot: int) -> LogError | None:
        """Return why the record in *slot* failed; None if it did not."""
        return None if self._error_of is None else self._error_of(slot)

    def watch(self, call: Callable[[], None]) -> None:
        """Call *call* when the outcome is known: on the loop, or here if it is already."""
        self._watchers.append(call)
        if self.place is not None or self._error_of is not None:
            call()

    def _notify(self) -> None:
        for call in tuple(self._watchers):
            call()
        self._watchers.clear()
