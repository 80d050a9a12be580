"""A client that tails a ledger from its first entry with no recovery, disturbing nobody.

One machine of `ledger.protocol.read` per read; the loop around it stands where the reader
handle stands in production.
"""

from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from ledger.entry import access_key
from ledger.ids import NO_ENTRY, LedgerId
from ledger.metadata import LedgerMetadata
from ledger.protocol import common
from ledger.protocol import read as protocol
from ledger.protocol.answers import verified
from ledger.requests import ReadAnswer, ReadQuery, Status
from tests.simulation.client import Client
from tests.simulation.writing import PASSWORD

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

WAIT_S: Final = 2.0
PAUSE_S: Final = 0.2
PAUSES_S: Final = (0.0, 0.0, 0.0, 0.01, 0.3, 1.5)
"""How long the application takes with what it was given, at random."""
PEEK_PAUSE_S: Final = 0.002
"""At least so long after an unconfirmed read, which may give nothing at once."""


class TailingClient(Client[protocol.ReadingEvent, protocol.ReadingEffect]):
    def __init__(self, cluster: "Cluster", name: str, ledger_id: LedgerId) -> None:
        super().__init__(cluster, name, ledger_id)
        self.next_entry = 0
        self.lost = 0
        """Reads that failed because no replica answered with the entry."""
        self._last_add_confirmed: int = NO_ENTRY
        self._metadata: LedgerMetadata | None = None
        self._version = -1
        self._deleted = False
        """Whether the watch reported it; it does not report it again."""
        self._reading: protocol.Reading | None = None
        self._unconfirmed = False
        """Whether the read under way is an unconfirmed one."""
        self._peeked: int = NO_ENTRY
        self._frames: dict[int, bytes] = {}

    def begin(self) -> None:
        """Read the metadata, as long as it takes, then the entries."""
        self.read_metadata(read=self._opened, failed=self.begin)

    def _opened(self, metadata: LedgerMetadata | None, version: int) -> None:
        if self._newest(metadata, version) is None:
            self.done = True
            return
        self.watch_metadata(self._changed)
        self._changed()  # what changed before the watch began
        self._next_read()

    def _changed(self) -> None:
        """Read the metadata and hand them to the read under way, as `LedgerReader` does."""
        if not self.done:
            self.read_metadata(read=self._refreshed, failed=self._change_missed)

    def _change_missed(self) -> None:
        """Try again: nobody reports this change a second time."""
        self.host.after(PAUSE_S, self._changed)

    def _refreshed(self, metadata: LedgerMetadata | None, version: int) -> None:
        self._deleted |= metadata is None
        self.feed(protocol.LedgerChanged(self._newest(metadata, version)))

    def _newest(self, metadata: LedgerMetadata | None, version: int) -> LedgerMetadata | None:
        """Return what is known by now: two reads may be answered in the other order."""
        if metadata is not None and version > self._version:
            self._metadata, self._version = metadata, version
        return metadata and self._metadata

    def _next_read(self) -> None:
        if self._deleted:
            self.mark("deletion_told_between_reads")
            self.done = True
            return
        assert self._metadata is not None
        end = self._metadata.last_entry
        if end is not None and self.next_entry > end:
            self.note(f"has read all up to {end}")
            self.mark("reader_reached_end")
            if self._peeked > end:
                self.mark("unconfirmed_entry_vanished")
            self.done = True
            return
        self._frames.clear()
        scheduler = self.cluster.scheduler
        random = scheduler.random
        self._unconfirmed = scheduler.chance(self.cluster.choices.unconfirmed)
        self._reading = protocol.Reading(
            self._metadata,
            first=self.next_entry,
            last=self.next_entry + random.randrange(16),
            last_add_confirmed=self._last_add_confirmed,
            give_up_at=self.host.clock() + WAIT_S,
            avoid=self.quarantine.quarantined(now=self.host.clock()),
            unconfirmed=self._unconfirmed,
        )
        self.run(self._reading, common.TimePassed())
        self.feed(protocol.ReadStarted())

    def execute(self, effect: protocol.ReadingEffect) -> None:
        match effect:
            case protocol.SendRead():
                query = ReadQuery(
                    self.ledger_id,
                    access_key(PASSWORD),
                    effect.first,
                    effect.last,
                    self.bytes_max(),
                    wait_ms=effect.wait_ms,
                )
                reading = self._reading
                self.read(effect.bookie, query, lambda answer: self._read(reading, effect, answer))
            case common.ReadMetadata():
                reading = self._reading
                self.read_metadata(
                    read=lambda metadata, version: self._tell(
                        reading, common.MetadataRead(metadata, version)
                    ),
                    failed=lambda: self._tell(reading, common.MetadataFailed()),
                )
            case protocol.Deliver():
                self._deliver(effect.first, effect.last)
            case protocol.FailRead():
                self.note(f"cannot read {self.next_entry}: {effect.failure.value}")
                if effect.failure is protocol.ReadFailure.DELETED:
                    self.done = True
                    return
                self.mark("read_found_no_replica")
                self.lost += 1
                self._after_read(PAUSE_S)
            case _:
                assert_never(effect)

    def _tell(self, reading: protocol.Reading | None, event: protocol.ReadingEvent) -> None:
        """Feed *event* unless it answers a read that is over."""
        if reading is self._reading:
            self.feed(event)

    def _read(
        self, reading: protocol.Reading | None, asked: protocol.SendRead, answer: ReadAnswer
    ) -> None:
        if reading is not self._reading:
            return
        found = verified(answer, self.ledger_id, None)
        damaged = found.damaged is not None
        self.reported(asked.bookie, Status.DAMAGED if damaged else found.status)
        for entry, frame in found.frames.items():
            self._frames[entry] = bytes(frame)
        self.cluster.oracle.saw_lac(self.ledger_id, found.last_add_confirmed, who=self.name)
        if asked.wait_ms and found.frames:
            self.mark("long_poll_woke_up")
        self.feed(
            protocol.EntriesRead(
                asked.index,
                asked.attempt,
                answer.status,
                tuple(found.frames),
                found.last_add_confirmed,
                answer.fenced,
            )
        )

    def _deliver(self, first: int, last: int) -> None:
        confirmed = last
        if self._unconfirmed:
            assert self._reading is not None
            end = self._reading.end
            confirmed = min(last, self._reading.last_add_confirmed if end is None else end)
        for entry in range(first, confirmed + 1):
            self.cluster.oracle.read(self.ledger_id, entry, self._frames[entry], who=self.name)
        for entry in range(max(first, confirmed + 1), last + 1):
            self._peek(entry)
        if last >= first:
            self.note(f"reads {first}..{last}, confirmed up to {confirmed}")
        self.next_entry = max(self.next_entry, confirmed + 1)
        pause_s = self.cluster.scheduler.random.choice(PAUSES_S)
        self._after_read(max(pause_s, PEEK_PAUSE_S) if self._unconfirmed else pause_s)

    def _peek(self, entry: int) -> None:
        """Take an entry that may not be part of the ledger in the end: nothing follows from it."""
        self.mark("unconfirmed_entry_read")
        self._peeked = max(self._peeked, entry)
        self.cluster.oracle.peeked(self.ledger_id, entry, self._frames[entry], who=self.name)

    def _after_read(self, delay_s: float) -> None:
        """Go on with what this read learned, not within its step."""
        assert self._reading is not None
        self._last_add_confirmed = self._reading.last_add_confirmed
        self.cluster.oracle.saw_lac(self.ledger_id, self._last_add_confirmed, who=self.name)
        self.host.after(delay_s, partial(self._next_read))
