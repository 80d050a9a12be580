"""Bugs of the drivers around the machines, and of readers."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from bookie.disk.port import Directories
from bookie.identity import stamp
from bookie.identity.cookie import Cookie
from bookie.storage import engine
from ledger import recovery
from ledger.entry import (
    HEADER_BYTES,
    Bad,
    Checked,
    Digest,
    Header,
    check_frames,
    encode_frame,
    parse_header,
    payload_of,
)
from ledger.metadata import LedgerMetadata
from ledger.protocol import answers
from ledger.protocol.read import Deliver, ReadFailure, Reading, ReadingEffect
from ledger.protocol.recovery_events import WriteBack
from ledger.reader import Entry, LedgerReader
from ledger.recovery import _Recovering
from ledger.requests import ReadAnswer
from tests.simulation.mutations.mutation import Patch, mutation
from tests.simulation.tailing import TailingClient


@mutation("rule 53")
def reader_delivers_above_the_lac(patch: Patch) -> None:
    def readable(self: Reading) -> int:
        return self._last if self.end is None else self.end

    patch.set(Reading, "readable", property(readable))


@mutation(
    "own, rule 55",
    test="tests/ledger/protocol/test_reading.py::test_what_a_watch_has_read_proves_no_loss",
    drawn=False,
)
def a_watch_proves_that_an_entry_is_lost(patch: Patch) -> None:
    """What it reports was read before the last replica denied the entry, and before it moved."""
    honest = Reading._changed

    def changed(
        self: Reading, metadata: LedgerMetadata | None, now: float
    ) -> list[ReadingEffect] | None:
        effects = honest(self, metadata, now)
        return self._fail(ReadFailure.LOST) if effects is None and self._all_denied else effects

    patch.set(Reading, "_changed", changed)


@mutation("rule 17")
def recovery_encodes_entries_again_with_its_own_lac(patch: Patch) -> None:
    honest = _Recovering._write_back

    def write_back(self: _Recovering, effect: WriteBack) -> None:
        for entry in range(effect.first, effect.last + 1):
            frame = self._frames.get(entry)
            if frame is not None:
                header = replace(parse_header(frame), last_add_confirmed=entry - 1)
                self._frames[entry] = encode_frame(
                    ledger_id=header.ledger_id,
                    entry_id=entry,
                    last_add_confirmed=header.last_add_confirmed,
                    length=header.length,
                    payload=bytes(payload_of(frame, header)),
                )
        honest(self, effect)

    patch.set(_Recovering, "_write_back", write_back)


@mutation("rules 74, 76")
def accepts_a_bookie_that_lost_its_disk(patch: Patch) -> None:
    """The cookie check skipped: who finds no data starts over, under the old name."""

    def check_together(stamped: list[stamp._Stamped], known: Cookie | None, _wanted: str) -> None:
        if known is not None and stamped[0].cookie is None:
            directories = Directories.single(stamped[0].disk)
            stamped[:] = stamp._stamp(directories, stamped, known, bytes)

    def check_newest(*_arguments: object) -> None:
        """Nothing is compared."""

    patch.set(stamp, "_check_together", check_together)
    patch.set(stamp, "_check_newest", check_newest)


@mutation("rule 53")
def believes_an_unconfirmed_read(patch: Patch) -> None:
    """A tail that goes on behind what an unconfirmed read gave it."""

    patch.set(TailingClient, "_peek", TailingClient._read)


@mutation("rule 53")
def takes_an_unconfirmed_entry_for_the_lac(patch: Patch) -> None:
    honest = Reading._deliver

    def deliver(self: Reading) -> list[ReadingEffect]:
        effects = honest(self)
        for effect in effects:
            if isinstance(effect, Deliver):
                self.last_add_confirmed = max(self.last_add_confirmed, effect.last)
        return effects

    patch.set(Reading, "_deliver", deliver)


@mutation("own bug, rule 53")
def forgets_that_the_ledger_was_deleted(patch: Patch) -> None:
    """What the watch reported while no read was under way was known to none that began later."""
    honest = LedgerReader._read_some

    async def read_some(self: LedgerReader, *args: Any, **options: Any) -> list[Entry]:
        self._deleted = False
        return await honest(self, *args, **options)

    patch.set(LedgerReader, "_read_some", read_some)


@mutation("#4404, rule 87")
def stores_what_arrives_without_a_check(patch: Patch) -> None:
    def unchecked(
        ledger_id: int, entries: Sequence[int], lengths: Sequence[int], data: bytes | memoryview
    ) -> Checked | Bad:
        checked = check_frames(ledger_id, entries, lengths, data)
        if isinstance(checked, Checked) or checked.index < 0:
            return checked
        starts = array("q", accumulate(lengths, initial=0))
        return Checked(array("q", entries), starts, bytes(data), -1, 0)

    patch.set(engine, "check_frames", unchecked)


@mutation("rule 54")
def reader_does_not_verify_entries(patch: Patch) -> None:
    def verify_frame(frame: memoryview, ledger_id: int, entry_id: int) -> Header:
        return Header(Digest.CRC32C, 0, len(frame) - HEADER_BYTES, ledger_id, entry_id, -1, 0, 0)

    patch.set(answers, "verify_frame", verify_frame)


@mutation("rule 54")
def takes_a_damaged_entry_for_absence(patch: Patch) -> None:
    honest = answers.verified

    def verified(answer: ReadAnswer, ledger_id: int, mac: bytes | None) -> answers.Found:
        found = honest(answer, ledger_id, mac)
        return replace(found, considered=answer.considered)

    patch.set(recovery, "verified", verified)
