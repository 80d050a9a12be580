"""Bugs of who says where a segment ends while its writer is about to go on in the next one."""

from dataclasses import replace

from dlog.aio.port import Ledgers, LedgerTail
from dlog.aio.read import chunks, segments, tails
from dlog.aio.read.chunks import ChunkReader
from dlog.aio.read.segments import opened
from dlog.aio.read.tails import TailTracker, _Open
from dlog.manifest import Manifest, Segment
from dlog.protocol import roll
from dlog.protocol.cursor import CursorEvent, NothingNew, ReadEntries, SegmentEnded
from dlog.protocol.log_writer import Writing
from dlog.protocol.log_writer_events import RollStepped, WritingEffect
from ledger.errors import NoSuchLedger
from ledger.ids import NO_ENTRY, EntryId
from tests.simulation.mutations.mutation import Patch, mutation


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_ends_of_segments.py"
    "::test_a_reader_that_looks_for_an_end_while_the_writer_switches_skips_nothing",
)
def asks_for_the_end_before_it_looks_for_an_entry_behind(patch: Patch) -> None:
    """What is added to the segment between the two questions is skipped. The writer has to learn of
    its next segment, and to use it, just between them: once in some 800 seeds."""

    async def learn_end(ledgers: Ledgers, reader: LedgerTail, later: Segment) -> EntryId | None:
        if reader.closed:
            return reader.last_entry
        end = await reader.read_last_stored()
        try:
            async with opened(ledgers, later.ledger_id) as after:
                if await after.read_last_stored() == NO_ENTRY:
                    return reader.last_entry
        except NoSuchLedger:
            return None
        reader.learn_confirmed(end)
        return end

    for module in (chunks, segments, tails):
        patch.set(module, "learn_end", learn_end)


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_ends_of_segments.py"
    "::test_a_tail_found_while_the_writer_switches_tells_no_txid_of_a_record_behind_it",
)
def adds_up_open_segments_whatever_they_are(patch: Patch) -> None:
    """Its end is never too high: confirmed records of both. But it is too low for its last txid,
    because of the first segment more may be confirmed by then; only that can be known from outside.
    """
    honest = TailTracker._look_at

    async def look_at(
        self: TailTracker, segment: Segment, manifest: Manifest
    ) -> tuple[_Open, bool]:
        found, _ = await honest(self, segment, manifest)
        return found, True

    patch.set(TailTracker, "_look_at", look_at)


@mutation(
    "",
    logs=True,
    test="tests/dlog/aio/test_ends_of_segments.py"
    "::test_a_segment_sealed_by_a_roll_does_not_claim_the_txids_of_the_next",
)
def seals_with_the_txid_of_now(patch: Patch) -> None:
    """Of what was appended to the next segment while the one before was closed."""
    honest = Writing._roll_stepped

    def roll_stepped(self: Writing, event: RollStepped, now: float) -> list[WritingEffect]:
        if isinstance(event.event, roll.LedgerClosed):
            sealed = replace(event.event.sealed, last_txid=self.confirmed_txid)
            event = replace(event, event=roll.LedgerClosed(sealed))
        return honest(self, event, now)

    patch.set(Writing, "_roll_stepped", roll_stepped)


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_ends_of_segments.py"
    "::test_a_segment_that_closes_as_a_read_of_it_times_out_is_read_to_its_end",
)
def ends_a_segment_that_closed_as_a_read_of_it_timed_out(patch: Patch) -> None:
    """Whatever recovery found behind what was read is skipped. It closes in just that turn of the
    loop once in thousands of seeds."""
    honest = ChunkReader._entries

    async def entries(self: ChunkReader, effect: ReadEntries) -> CursorEvent:
        event = await honest(self, effect)
        closed = self._tail is not None and self._tail.last_entry is not None
        return SegmentEnded() if closed and isinstance(event, NothingNew) else event

    patch.set(ChunkReader, "_entries", entries)
