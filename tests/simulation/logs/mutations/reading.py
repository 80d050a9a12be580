"""Bugs of readers and named consumers."""

from contextlib import suppress
from dataclasses import replace

from dlog.aio.port import Ledgers, LedgerTail
from dlog.aio.procedures import run_on_store
from dlog.aio.read import chunks, handles, places, reader
from dlog.aio.read.tails import tail_of
from dlog.aio.store import ConsumerNode, ManifestNode
from dlog.errors import DamagedLog, NoSuchLog
from dlog.manifest import Manifest, Segment
from dlog.position import Start, Timestamp, Txid
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.cursor import AwaitManifest, Cursor, CursorEffect, Fail, Finish
from ledger.errors import (
    LogError,
)
from ledger.ids import EntryId
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("#2898", logs=True)
def skips_the_segment_behind_an_empty_one(patch: Patch) -> None:
    """Moves on twice: once for the end of the segment before, once for the empty one."""
    honest = Cursor._enter_after

    def enter_after(self: Cursor, number: int, manifest: Manifest) -> CursorEffect:
        following = manifest.after(number)
        if following is not None and following.sealed is not None and not following.sealed.records:
            beyond = manifest.after(following.number)
            if beyond is not None and beyond.sealed is not None:
                number = beyond.number
                self._position = beyond.end_offset or self._position
                self._next = self._position
        return honest(self, number, manifest)

    patch.set(Cursor, "_enter_after", enter_after)


@mutation("#1973", logs=True)
def reads_the_last_record_again_at_a_segment_boundary(patch: Patch) -> None:
    honest = Cursor._ended

    def ended(self: Cursor) -> CursorEffect:
        if self._next > self._first:
            self._next -= 1
            return self._locate()
        return honest(self)

    patch.set(Cursor, "_ended", ended)


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/dlog/protocol/test_cursor.py"
    "::test_a_segment_that_begins_elsewhere_than_the_one_before_ended_is_damage",
)
def enters_a_segment_wherever_it_begins(patch: Patch) -> None:
    """Not drawn: it takes a damaged manifest."""

    def enter_after(self: Cursor, number: int, manifest: Manifest) -> CursorEffect:
        left = manifest.find(number)
        if left is None and self._position < self._next:
            return self._enter_by_offset(manifest)
        if left is not None and left.end_offset not in {None, self._position}:
            return Fail(DamagedLog(self.log, "it ends elsewhere"))
        segment = manifest.after(number)
        if segment is None:
            return Finish() if manifest.sealed else AwaitManifest()
        return self._enter(segment, self._position, manifest)

    patch.set(Cursor, "_enter_after", enter_after)


@mutation("", logs=True)
def jumps_over_what_was_trimmed(patch: Patch) -> None:
    honest = Cursor._manifest_seen

    def manifest_seen(self: Cursor, manifest: Manifest | None) -> CursorEffect:
        if manifest is not None and not manifest.dropped and self._next < manifest.trim_offset:
            self._next = manifest.trim_offset
            self._phase = self._phase.LOCATING
        return honest(self, manifest)

    patch.set(Cursor, "_manifest_seen", manifest_seen)


@mutation("DL #203", logs=True)
def takes_the_last_add_confirmed_for_a_barrier(patch: Patch) -> None:
    async def end(
        ledgers: Ledgers,
        node: ManifestNode,
        *,
        timeout_s: float = 0.0,
        incarnation: str | None = None,
        learned: object = None,
    ) -> int:
        manifest, _ = await node.read()
        if incarnation not in {None, manifest.incarnation}:
            raise NoSuchLog(node.log)
        return (await tail_of(ledgers, node.log)).next_offset

    for module in (reader, handles):
        patch.set(module, "acknowledged_end", end)


@mutation("seeds", logs=True)
def leaves_a_segment_before_its_writer_did(patch: Patch) -> None:
    """The next segment is listed, so the one before is taken to be complete."""

    async def learn(_: Ledgers, tail: LedgerTail, __: Segment) -> EntryId | None:
        return await tail.read_last_add_confirmed()

    patch.set(chunks, "learn_end", learn)


@mutation("own bug", logs=True)
def leaves_its_lock_behind(patch: Patch) -> None:
    """The metadata store does not answer, the session lives on."""

    async def unlock(self: ConsumerNode) -> None:
        with suppress(LogError):
            await run_on_store(self.steps._unlock(), self._store)

    patch.set(ConsumerNode, "unlock", unlock)


@mutation(
    "",
    logs=True,
    test="tests/dlog/protocol/test_consuming.py::test_an_exclusive_open_fences_every_handle_before",
)
def goes_by_the_lock_alone(patch: Patch) -> None:
    """A consumer that slept commits over the one that took its place."""

    def committed(
        self: ConsumerState, offset: int, *, by: ConsumerState, name: str, now_ms: int
    ) -> ConsumerState:
        assert by.incarnation
        assert name
        return replace(self, position=max(self.position, offset), updated_ms=now_ms)

    patch.set(ConsumerState, "committed", committed)


@mutation("", logs=True)
def moves_a_consumer_back(patch: Patch) -> None:
    honest = ConsumerState.committed

    def committed(
        self: ConsumerState, offset: int, *, by: ConsumerState, name: str, now_ms: int
    ) -> ConsumerState:
        return replace(honest(self, offset, by=by, name=name, now_ms=now_ms), position=offset)

    patch.set(ConsumerState, "committed", committed)


@mutation("own bug", logs=True)
def takes_the_end_of_a_moment_later(patch: Patch) -> None:
    """For the place that nothing has reached yet: what was appended meanwhile is below it."""
    honest = places._start_offset

    async def start_offset(ledgers: Ledgers, node: ManifestNode, start: Start) -> int:
        if not isinstance(start, Txid | Timestamp):
            return await honest(ledgers, node, start)
        end = (await tail_of(ledgers, node.log)).next_offset
        found = await honest(ledgers, node, start)
        return found if found < end else (await tail_of(ledgers, node.log)).next_offset

    patch.set(places, "_start_offset", start_offset)
