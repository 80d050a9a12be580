"""What is right about a log's entries: each replica the same, each entry the next one's beginning.

Pure: judges what was read, window after window, and remembers no more than counts and the end of
the entry before.
"""

from dataclasses import dataclass
from typing import Final

from dlog.manifest import Segment
from dlog.position import NO_TXID
from dlog.recordbatch import BatchHeader
from ledger.entry import Header, ReplicaFault
from ledger.ids import BookieId, EntryId, LedgerId

PROBLEMS_MAX: Final = 1000
"""How many problems a report names; it counts all."""


@dataclass(frozen=True, slots=True)
class FragmentFault:
    """What is wrong with one bookie's share of a fragment."""

    segment: int
    ledger_id: LedgerId
    fragment: EntryId
    """The fragment's first entry."""
    bookie: BookieId
    fault: ReplicaFault
    first_entry: int
    last_entry: int
    """First and last entry that is concerned; there may be others between."""
    entries: int
    """How many are."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that no replica makes good: the log itself is damaged."""

    segment: int
    entry: int | None
    """None: it concerns the segment as a whole."""
    reason: str


class SegmentCheck:
    """Checks the entries of one segment in order: they join, and end as the manifest says."""

    def __init__(self, segment: Segment, *, last_txid: int) -> None:
        self._segment = segment
        self._next_entry = 0
        self._length: int | None = 0
        """Payload bytes up to here; None: not known, entries before are lost."""
        self._index: int | None = 0
        self._last_txid = last_txid
        self.records = 0

    @property
    def last_txid(self) -> int:
        """The last txid of the log up to here."""
        return self._last_txid

    def lost(self, entry_id: int) -> Problem:
        """No replica gives the entry."""
        self._next_entry = entry_id + 1
        self._length = self._index = None
        return self._problem(entry_id, "no replica can give it: its records are lost")

    def entry(self, frame: Header, batch: BatchHeader | None, damage: str = "") -> list[Problem]:
        """Check the next entry. *batch* None: it is no record batch, because of *damage*."""
        entry_id, problems = frame.entry_id, []
        assert entry_id == self._next_entry, "entries come in order"
        self._next_entry = entry_id + 1
        if self._length is not None and frame.length != self._length + frame.payload_bytes:
            reason = f"its length is {frame.length}, and {self._length + frame.payload_bytes} fits"
            problems.append(self._problem(entry_id, reason))
        if frame.last_add_confirmed >= entry_id:
            reason = f"it names entry {frame.last_add_confirmed} as confirmed before itself"
            problems.append(self._problem(entry_id, reason))
        self._length = frame.length
        if batch is None:
            self._index = None
            return [*problems, self._problem(entry_id, damage)]
        if self._index is not None and batch.base_index != self._index:
            reason = f"it begins at record {batch.base_index} of its segment, not {self._index}"
            problems.append(self._problem(entry_id, reason))
        if NO_TXID < batch.first_txid < self._last_txid or batch.last_txid < self._last_txid:
            reason = f"txids {batch.first_txid} to {batch.last_txid} come after {self._last_txid}"
            problems.append(self._problem(entry_id, reason))
        self._index = batch.end_index
        self._last_txid = max(self._last_txid, batch.last_txid)
        self.records += batch.count
        return problems

    def end(self) -> list[Problem]:
        """Compare the whole with what the manifest says, if the segment is sealed."""
        sealed = self._segment.sealed
        if sealed is None:
            return []
        facts = (
            ("entries", self._next_entry, sealed.last_entry + 1),
            ("records", self._index, sealed.records),
            ("payload bytes", self._length, sealed.bytes),
        )
        return [
            self._problem(None, f"it has {found} {what}, by the manifest {wanted}")
            for what, found, wanted in facts
            if found not in {None, wanted}
        ]

    def _problem(self, entry: int | None, reason: str) -> Problem:
        return Problem(self._segment.number, entry, reason)
