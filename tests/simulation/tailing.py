"""A client that tails a ledger from its first entry with no recovery, disturbing nobody."""

import asyncio
from typing import TYPE_CHECKING, Final

from ledger.entry import encode_frame
from ledger.errors import LogError, MetadataUnavailable, NoSuchLedger
from ledger.ids import NO_ENTRY, LedgerId
from ledger.reader import Entry, LedgerReader
from tests.simulation.client import PASSWORD, ClientProcess

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

WAIT_S: Final = 2.0
PAUSE_S: Final = 0.2
PAUSES_S: Final = (0.0, 0.0, 0.0, 0.01, 0.3, 1.5)
"""How long the application takes with what it was given, at random."""


class TailingClient(ClientProcess):
    def __init__(self, cluster: "Cluster", name: str, ledger_id: LedgerId) -> None:
        super().__init__(cluster, name, ledger_id)
        self.next_entry = 0
        self.lost = 0
        """Reads that failed because no replica answered with the entry."""
        self._peeked: int = NO_ENTRY

    def begin(self) -> None:
        """Read the metadata, as long as it takes, then the entries."""
        self.run(self._tail())

    async def _tail(self) -> None:
        reader = await self._open()
        if reader is not None:
            try:
                while not self.done:
                    await self._read_on(reader)
            finally:
                await reader.close()
        self.done = True

    async def _open(self) -> LedgerReader | None:
        while True:
            try:
                return await self.ledgers.open_no_recovery(self.ledger_id, password=PASSWORD)
            except NoSuchLedger:
                return None
            except MetadataUnavailable:
                continue

    async def _read_on(self, reader: LedgerReader) -> None:
        """Read once, from where the reads before came to."""
        end = reader.last_entry
        if end is not None and self.next_entry > end:
            self._reached(end)
            return
        scheduler = self.cluster.scheduler
        first, last = self.next_entry, self.next_entry + scheduler.random.randrange(16)
        is_unconfirmed = scheduler.chance(self.cluster.choices.unconfirmed)
        was_deleted = reader._deleted
        try:
            if is_unconfirmed:
                entries = await reader.read_unconfirmed(first, last)
            else:
                entries = await reader.read_some(first, last=last, wait_s=WAIT_S)
        except NoSuchLedger:
            if was_deleted:
                self.mark("deletion_told_between_reads")
            self.note("learns that the ledger was deleted")
            self.done = True
            return
        except LogError as error:
            self.note(f"cannot read {first}: {type(error).__name__}")
            self.mark("read_found_no_replica")
            self.lost += 1
            await asyncio.sleep(PAUSE_S)
            return
        if not reader.closed:  # else its end is that of the ledger, and no LAC
            self.cluster.oracle.saw_lac(self.ledger_id, reader.last_add_confirmed, who=self.name)
        confirmed = reader.last_add_confirmed if is_unconfirmed else last
        self._take(entries, confirmed)
        if is_unconfirmed and not entries:
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(scheduler.random.choice(PAUSES_S))

    def _reached(self, end: int) -> None:
        self.note(f"has read all up to {end}")
        self.mark("reader_reached_end")
        if self._peeked > end:
            self.mark("unconfirmed_entry_vanished")
        self.done = True

    def _take(self, entries: list[Entry], confirmed: int) -> None:
        """Use what is *confirmed*, and look at the others."""
        if entries:
            first, last = entries[0].entry_id, entries[-1].entry_id
            self.note(f"reads {first}..{last}, confirmed up to {min(last, confirmed)}")
        for entry in entries:
            if entry.entry_id > confirmed:
                self._peek(entry)
            else:
                self._read(entry)

    def _read(self, entry: Entry) -> None:
        self.cluster.oracle.read(self.ledger_id, entry.entry_id, self._frame(entry), who=self.name)
        self.next_entry = max(self.next_entry, entry.entry_id + 1)

    def _peek(self, entry: Entry) -> None:
        """Take an entry that may not be part of the ledger in the end: nothing follows from it."""
        self.mark("unconfirmed_entry_read")
        self._peeked = max(self._peeked, entry.entry_id)
        frame = self._frame(entry)
        self.cluster.oracle.peeked(self.ledger_id, entry.entry_id, frame, who=self.name)

    def _frame(self, entry: Entry) -> bytes:
        """Return the bytes of which *entry* was made, by what the reader gave."""
        return encode_frame(
            ledger_id=self.ledger_id,
            entry_id=entry.entry_id,
            last_add_confirmed=entry.last_add_confirmed,
            length=entry.length,
            payload=bytes(entry.payload),
        )
