"""Bugs of the drivers of ledgers: what they believe, and what they report.

The scenario of ledgers has drivers of its own, so these are for the logs."""

from collections.abc import Sequence
from dataclasses import replace

from bookie.server import add_connection
from ledger import client, entry, recovery, writer
from ledger.entry import encode_frame, parse_header
from ledger.errors import DamagedEntry
from ledger.ids import NO_ENTRY, EntryId
from ledger.metadata import LedgerMetadata
from ledger.protocol.answers import Found, proven_lac
from ledger.protocol.recovery_events import LacRead
from ledger.protocol.recovery_phases import Fencing
from ledger.reader import LedgerReader, ReaderState
from ledger.requests import ReadAnswer, Status
from ledger.transport import messages
from tests.simulation.mutations.mutation import Patch, mutation

_BELIEVED = "tests/ledger/test_what_is_believed.py"


@mutation(
    "rule 54",
    logs=True,
    drawn=False,
    test=f"{_BELIEVED}::test_recovery_believes_no_frame_whose_digest_is_wrong",
)
def recovers_what_it_does_not_verify(patch: Patch) -> None:
    def believed(answer: ReadAnswer, ledger_id: int, mac: bytes | None) -> Found:
        frames = dict(answer.each())
        headers = {}
        for entry_id, frame in list(frames.items()):
            try:
                headers[entry_id] = parse_header(frame)
            except DamagedEntry:
                del frames[entry_id]
        lac = proven_lac(answer.lac_proof, ledger_id, mac)
        return Found(answer.status, headers, frames, answer.considered, None, lac, answer.fenced)

    patch.set(recovery, "verified", believed)


_HANDLE = "tests/simulation/scenarios/test_handle.py"


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_HANDLE}::test_the_lac_goes_at_once_to_bookies_at_which_readers_wait_and_later_to_the_others",
)
def forgets_the_lac_that_it_put_off(patch: Patch) -> None:
    """Whoever reads to the end when the writer is quiet never gets its last entry. Writers of the
    simulator are never quiet for as long as readers wait."""

    def publish_late(self: writer.LedgerWriter) -> None:
        self._quiet = self._put_off = None

    patch.set(writer.LedgerWriter, "_publish_late", publish_late)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_HANDLE}::test_a_writer_that_gives_up_publishes_what_is_confirmed",
)
def gives_up_without_publishing_what_is_confirmed(patch: Patch) -> None:
    """Whoever reads to the end lacks the last entry until somebody takes the log over; readers of
    the simulator wait for that."""
    patch.set(writer.LedgerWriter, "publish", lambda _self: None)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_HANDLE}::test_a_reader_that_has_come_gets_the_lac_with_the_answer_that_tells_of_it",
)
def does_not_look_whether_a_reader_has_come(patch: Patch) -> None:
    """A tail is a quiet moment later; nothing is broken by that."""
    patch.set(writer.LedgerWriter, "_publish_if_watched", lambda _self, _bookie: None)


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/bookie/server/test_connections.py"
    "::test_an_ack_says_whether_a_read_waits_or_has_lately",
)
def says_that_nobody_waits(patch: Patch) -> None:
    """A tail is a quiet moment later; nothing is broken by that."""

    def ack_message(
        first: int, last: int, statuses: Sequence[Status], held_ms: int = 0, **_: bool
    ) -> bytes:
        return messages.ack_message(first, last, statuses, held_ms, unwatched=True)

    patch.set(add_connection, "ack_message", ack_message)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_BELIEVED}::test_a_bound_on_what_was_acknowledged_comes_of_the_newest_ensemble",
)
def bounds_what_was_acknowledged_by_old_metadata(patch: Patch) -> None:
    """Bookies that were replaced say how much was ever acknowledged."""

    async def read_last_stored(self: LedgerReader) -> EntryId:
        if self.last_entry is not None:
            return self.last_entry
        last = self.metadata.last_fragment
        answers = await self._ask_all(last.bookies)
        return EntryId(max(answers.last_entry, last.first_entry - 1))

    patch.set(LedgerReader, "read_last_stored", read_last_stored)


@mutation(
    "rule 14",
    logs=True,
    drawn=False,
    test=f"{_BELIEVED}::test_each_entry_tells_bookies_what_is_confirmed_by_then",
)
def tells_no_lac_with_its_entries(patch: Patch) -> None:
    """Nothing is lost by it: recovery begins lower. Readers of a busy writer see nothing."""
    patch.set(writer, "encode_frame", _without_lac)


def _without_lac(**frame: object) -> bytes:
    return encode_frame(**{**frame, "last_add_confirmed": NO_ENTRY})  # type: ignore[arg-type]


@mutation("rule 87", logs=True)
def stores_codes_that_were_damaged_on_the_way(patch: Patch) -> None:
    """The record is acknowledged, and no reader can read it."""
    patch.set(entry, "_is_whole", lambda _header_crc, _trailer: True)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_strangers.py::test_a_stranger_reads_forges_and_stops_nothing",
)
def gives_all_ledgers_the_key_of_the_empty_password(patch: Patch) -> None:
    """Not drawn: nobody is a stranger there."""
    patch.set(client, "SECRET_BYTES", 0)


@mutation(
    "rule 40",
    logs=True,
    drawn=False,
    test="tests/ledger/protocol/test_fencing.py"
    "::test_a_last_add_confirmed_without_a_fence_covers_nothing",
)
def takes_a_last_add_confirmed_for_a_fence(patch: Patch) -> None:
    """No bookie that is asked to fence answers so unless it did; one of another version might."""
    honest = Fencing.heard

    def heard(self: Fencing, event: LacRead, now: float) -> None:
        fenced = event.fenced or event.last_add_confirmed > NO_ENTRY
        honest(self, replace(event, fenced=fenced), now)

    patch.set(Fencing, "heard", heard)


@mutation(
    "rule 4",
    logs=True,
    drawn=False,
    test="tests/ledger/test_known.py::test_a_late_reply_does_not_open_a_closed_ledger_again",
)
def believes_a_late_reply_that_a_closed_ledger_is_open(patch: Patch) -> None:
    honest = ReaderState.learn

    def learn(self: ReaderState, metadata: LedgerMetadata | None) -> None:
        honest(self, metadata)
        if metadata is not None:
            self.metadata = metadata

    patch.set(ReaderState, "learn", learn)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_BELIEVED}::test_a_bound_on_what_was_acknowledged_comes_of_the_newest_ensemble",
)
def bounds_what_was_acknowledged_by_what_replacements_hold(patch: Patch) -> None:
    """Which is nothing yet, although all before their fragment was acknowledged."""

    async def read_last_stored(self: LedgerReader) -> EntryId:
        metadata, _ = await self._environment.ledgers.read(self.ledger_id, fresh=True)
        self._known.learn(metadata)
        answers = await self._ask_all(metadata.last_fragment.bookies)
        return EntryId(answers.last_entry) if self.last_entry is None else self.last_entry

    patch.set(LedgerReader, "read_last_stored", read_last_stored)
