"""The table of a bookie's ledgers: one record per ledger in memory, few of them at a time.

A ledger is *ordinary* while nothing but its key and its ids can be against a writer's add. Of most
adds that one look-up is all that is asked; `BookieStorage.check_ordinary` says what it stands for.

Invariants:
    there is at most one record of a ledger (two would let an add pass a fence: rule 30)
    a record that says more than the disk is pinned; others are forgotten, longest unused first
    the record of an ordinary ledger says more than the disk, and is not fenced
Callers serialise all calls (one lock of the storage).
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from bookie.index.format import (
    PAGE_ENTRIES,
    STRETCHES_MAX,
    LedgerHeader,
    extents_of,
    insert,
    touches,
)
from ledger.entry import Checked, parse_header


@dataclass(slots=True)
class LedgerRecord:
    """The state of one ledger; *stored* is as much of it as is on disk."""

    stored: LedgerHeader
    fenced: bool = False
    fence_ticket: int = 0
    """The journal's ticket of the fence; an earlier start's fence has none."""
    last_entry: int = -1
    last_add_confirmed: int = -2
    """-2: none known, not even an explicit -1."""
    lac_proof: bytes = b""
    added: list[tuple[int, int]] = field(default_factory=list)
    """Extents of pages that adds have brought, and that may not be in *stored* yet."""

    @property
    def ledger_id(self) -> int:
        return self.stored.ledger_id

    @property
    def key(self) -> bytes:
        return self.stored.key

    def learn(self, run: Checked) -> None:
        """Take note of the entries of *run*."""
        self.last_entry = max(self.last_entry, run.entries[-1])
        if run.last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed, self.lac_proof = run.last_add_confirmed, run.proof()

    def reach(self, run: Checked) -> bool:
        """Take note of the pages that the entries of *run* will be on; return False, and do not, if
        these make more stretches than a ledger can have."""
        first, last = run.entries[0] // PAGE_ENTRIES, run.entries[-1] // PAGE_ENTRIES
        if self.added and self.added[-1][0] <= first and last <= self.added[-1][1]:
            return True
        stored, added = self.stored.extents, self.added
        extents = extents_of(run.entries)
        fresh = sum(not touches(stored, *e) and not touches(added, *e) for e in extents)
        if fresh and len(stored) + len(added) + fresh > STRETCHES_MAX:
            return False
        for extent in extents:
            insert(added, *extent)
        return True

    def learn_lac(self, run: Checked) -> bool:
        """Keep the proof of the highest LAC; return whether *run* has it (rule 14)."""
        if run.last_add_confirmed <= self.last_add_confirmed:
            return False
        self.last_add_confirmed, self.lac_proof = run.last_add_confirmed, run.proof()
        return True


class LedgerTable:
    """See the module's docstring."""

    def __init__(self, ledger_ids: Iterable[int], *, clean_max: int) -> None:
        self._known = dict.fromkeys(ledger_ids)
        self._clean_max = clean_max
        self._clean: OrderedDict[int, LedgerRecord] = OrderedDict()
        self._dirty: dict[int, LedgerRecord] = {}
        self._flushing: dict[int, LedgerRecord] = {}
        self.ordinary: dict[int, LedgerRecord] = {}
        """Entered by an add that was taken after all was looked at; whoever changes one of the
        reasons takes ledgers out, under the lock, after the change."""

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def __len__(self) -> int:
        """Return the number of records in memory."""
        return len(self._clean) + len(self._dirty.keys() | self._flushing.keys())

    @property
    def known(self) -> int:
        """How many ledgers there are."""
        return len(self._known)

    @property
    def in_memory_max(self) -> int:
        """How many records stay in memory although they say no more than the disk."""
        return self._clean_max

    def ids(self) -> list[int]:
        return sorted(self._known)

    def is_known(self, ledger_id: int) -> bool:
        """Whether the ledger exists here; its record may have to be read from disk."""
        return ledger_id in self._known

    def is_on_disk(self, ledger_id: int) -> bool:
        """Whether the ledger exists here, and memory has nothing of it that the disk has not."""
        in_memory = ledger_id in self._dirty or ledger_id in self._flushing
        return self.is_known(ledger_id) and not in_memory

    def get(self, ledger_id: int) -> LedgerRecord | None:
        """Return the record if it is in memory."""
        record = self._dirty.get(ledger_id) or self._flushing.get(ledger_id)
        if record is None:
            record = self._clean.get(ledger_id)
            if record is not None:
                self._clean.move_to_end(ledger_id)
        return record

    def create(self, ledger_id: int, key: bytes, *, fenced: bool = False) -> LedgerRecord:
        """Return the record of a ledger that is not here."""
        assert ledger_id not in self._known
        record = LedgerRecord(LedgerHeader(ledger_id, key), fenced)
        self._known[ledger_id] = None
        self._dirty[ledger_id] = record
        return record

    def adopt(self, stored: LedgerHeader) -> None:
        """Take a record as it is on disk, unless one is in memory."""
        if self.get(stored.ledger_id) is not None:
            return
        lac = parse_header(stored.lac_proof).last_add_confirmed if stored.lac_proof else -2
        self._clean[stored.ledger_id] = LedgerRecord(
            stored, stored.fenced, 0, stored.last_entry, lac, stored.lac_proof
        )
        self._evict()

    def touch(self, record: LedgerRecord) -> None:
        """Take note that *record* says more than the disk."""
        ledger_id = record.stored.ledger_id
        self._dirty[ledger_id] = record
        self._clean.pop(ledger_id, None)

    def fence(self, record: LedgerRecord, ticket: int) -> None:
        """Fence a ledger that is not; *ticket*: of the fence, in the journal."""
        record.fenced, record.fence_ticket = True, ticket
        self.ordinary.pop(record.ledger_id, None)
        self.touch(record)

    def remove(self, ledger_id: int) -> None:
        """Forget a ledger that was deleted or evicted, if it is known."""
        self._known.pop(ledger_id, None)
        for records in (self._clean, self._dirty, self._flushing, self.ordinary):
            records.pop(ledger_id, None)

    def begin_flush(self) -> None:
        """Let the records that say more than the disk be those to write."""
        assert not self._flushing, "one flush at a time"
        self._flushing, self._dirty = self._dirty, {}
        self.ordinary.clear()

    def flushing(self) -> list[LedgerRecord]:
        """Return the records to write, in order of their ids. Needs no lock: which these are is
        changed by nobody but who flushes, removes and evicts, and that is one at a time."""
        return [self._flushing[ledger_id] for ledger_id in sorted(self._flushing)]

    def written(self, stored: Iterable[LedgerHeader]) -> None:
        """Take note that this is on disk now, of some of the records to write."""
        for header in stored:
            record = self._flushing.pop(header.ledger_id)
            record.stored = header
            if header.ledger_id not in self._dirty:
                record.added.clear()
                self._clean[header.ledger_id] = record
        self._evict()

    def abandon_flush(self) -> None:
        """Let the records that were begun be those of a later flush, as if nothing was written."""
        self._dirty = self._flushing | self._dirty
        self._flushing = {}

    def end_flush(self) -> None:
        """Requires that all that was begun is written."""
        assert not self._flushing, "every record that was begun was written"

    def check_ordinary(self) -> None:
        for ledger_id, record in self.ordinary.items():
            assert self._dirty.get(ledger_id) is record, "an ordinary ledger says nothing new"
            assert not record.fenced, "an ordinary ledger is fenced"

    def _evict(self) -> None:
        while len(self._clean) > self._clean_max:
            self._clean.popitem(last=False)
