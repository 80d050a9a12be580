"""What one ledger's writer promised and its readers saw: the invariants, checked from outside.

Everything here is told by the real clients: no metadata and no disk is looked into. Names as
in the simulator's invariants, which check the same with the lid off.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from ledger import LedgerMetadata, LedgerState
from ledger.errors import LogError
from ledger.ids import EntryId
from ledger.reader import Entry


@dataclass(slots=True)
class History:
    """One ledger; entry ids are indexes of `payloads`."""

    payloads: list[bytes] = field(default_factory=list)
    """As they were added, acknowledged or not."""
    acknowledged: list[int] = field(default_factory=list)
    """In the order in which the writer's caller was told."""
    refused: list[str] = field(default_factory=list)
    """Names of the errors that adds ended with."""
    lac_seen: int = -1
    """The highest last add confirmed that any reader was given while the ledger was open."""
    added_before_close: int | None = None
    """How many adds were made before the first recoverer said CLOSED."""
    broken: list[str] = field(default_factory=list)
    """Promises the writer broke, found while it was talking."""

    def added(self, payload: bytes) -> int:
        """Note an add that is about to be made; return the id it must get."""
        self.payloads.append(payload)
        return len(self.payloads) - 1

    def told(self, entry_id: int, outcome: EntryId | LogError) -> None:
        """Note how the add of *entry_id* ended. Called where nothing can be raised."""
        if isinstance(outcome, LogError):
            self.refused.append(type(outcome).__name__)
            return
        if outcome != entry_id:
            self.broken.append(f"the add of entry {entry_id} resolved to {outcome}")
        if self.refused:
            self.broken.append(f"entry {entry_id} was acknowledged after a refusal")
        if entry_id != len(self.acknowledged):
            self.broken.append(f"{entry_id} acknowledged, {len(self.acknowledged)} was next")
        if self.added_before_close is not None and entry_id >= self.added_before_close:
            self.broken.append(f"entry {entry_id} was added after the close and acknowledged")
        self.acknowledged.append(entry_id)

    def saw_lac(self, lac: int, confirmed_by_writer: int) -> None:
        """A reader of the open ledger was told *lac*."""
        assert lac <= confirmed_by_writer, f"LAC {lac} above the writer's {confirmed_by_writer}"
        self.lac_seen = max(self.lac_seen, lac)

    def saw_close(self) -> None:
        if self.added_before_close is None:
            self.added_before_close = len(self.payloads)

    def check_entries(self, first: int, entries: Iterable[Entry]) -> int:
        """Check what was read from *first* on, without a gap; return the next id."""
        for entry in entries:
            assert entry.entry_id == first, f"read {entry.entry_id}, expected {first}"
            assert entry.payload == self.payloads[first], f"entry {first} has other bytes"
            first += 1
        return first

    def check_closed(self, outcomes: list[LedgerMetadata]) -> None:
        """Check what the recoverers say against each other and against every promise."""
        assert not self.broken, self.broken
        closed = outcomes[0]
        assert all(other == closed for other in outcomes), f"they disagree: {outcomes}"
        assert closed.state is LedgerState.CLOSED
        assert closed.last_entry is not None
        last_promised = len(self.acknowledged) - 1
        assert closed.last_entry >= last_promised, (
            f"closed at {closed.last_entry}, acknowledged up to {last_promised}"
        )
        assert closed.last_entry >= self.lac_seen, (
            f"closed at {closed.last_entry}, a reader was told LAC {self.lac_seen}"
        )
        assert closed.last_entry < len(self.payloads), "it holds what nobody added"
        assert closed.length == sum(map(len, self.payloads[: closed.last_entry + 1]))
        firsts = [fragment.first_entry for fragment in closed.fragments]
        assert all(a < b for a, b in pairwise(firsts)), f"fragments out of order: {firsts}"
