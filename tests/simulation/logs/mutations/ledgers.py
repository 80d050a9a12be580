"""Bugs of the drivers of ledgers: what they believe, and what they tell.

The scenario of ledgers has drivers of its own, so these are for the logs."""

from ledger import client, recovering, writer
from ledger.entry import encode_frame, parse_header
from ledger.errors import DamagedEntry
from ledger.ids import NO_ENTRY, EntryId
from ledger.protocol.answers import Found, proven_lac
from ledger.reader import LedgerReader
from ledger.requests import ReadAnswer
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

    patch.set(recovering, "verified", believed)


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
        before_fragment = self.metadata.last_fragment.first_entry - 1
        return EntryId(max(await self._ask_all(), before_fragment))

    patch.set(LedgerReader, "read_last_stored", read_last_stored)


@mutation(
    "rule 12",
    logs=True,
    drawn=False,
    test=f"{_BELIEVED}::test_each_entry_tells_bookies_what_is_confirmed_by_then",
)
def tells_no_lac_with_its_entries(patch: Patch) -> None:
    """Nothing is lost by it: recovery begins lower. Readers of a busy writer see nothing."""
    patch.set(writer, "encode_frame", _without_lac)


def _without_lac(**frame: object) -> bytes:
    return encode_frame(**{**frame, "last_add_confirmed": NO_ENTRY})  # type: ignore[arg-type]


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/test_strangers.py::test_a_stranger_reads_forges_and_stops_nothing",
)
def gives_all_ledgers_the_key_of_the_empty_password(patch: Patch) -> None:
    """Not drawn: nobody is a stranger there."""
    patch.set(client, "SECRET_BYTES", 0)
