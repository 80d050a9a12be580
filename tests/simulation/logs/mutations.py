"""Bugs of the log layer: of DistributedLog, likely ones, and those that this simulator found here.

#n is an issue or pull request of DistributedLog or BookKeeper; "seeds" is the order of steps of
the documents that the log layer follows. An own bug was in this project until a seed found it.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Final

from dlog.aio import chunks, manifests, opening, reader, rolling, survey, writer
from dlog.aio.consumer_nodes import ConsumerNode
from dlog.aio.log import Log
from dlog.aio.manifests import ManifestNode
from dlog.aio.opening import OpenedLog, TakeoverDriver
from dlog.aio.port import LedgerAppender, Ledgers, LedgerTail
from dlog.aio.segments import header_of, opened, seal_of
from dlog.aio.standby import Standby
from dlog.aio.tails import tail_of
from dlog.aio.writer import LogWriter
from dlog.errors import LogExists, LostOwnership, NoSuchLog
from dlog.manifest import Manifest, Sealed
from dlog.protocol import orphans, takeover
from dlog.protocol.consuming import ConsumerState
from dlog.protocol.cursor import Cursor, CursorEffect
from dlog.protocol.edits import Edit, check_writable, trim
from dlog.protocol.orphans import Stamp, Standing
from dlog.protocol.packer import Group
from dlog.protocol.takeover import Takeover, TakeoverEffect
from leader import Term
from ledger.errors import (
    LogError,
    MetadataUnavailable,
    NodeExists,
    NoSuchLedger,
    NoSuchNode,
    RemoteError,
)
from ledger.ids import NO_ENTRY, EntryId, LedgerId
from ledger.metastore.ops import CreateOp, DeleteOp
from tests.simulation.mutations.mutation import Patch, mutation

SWAP_LATER_S: Final = 0.02


async def _seal_by_lac(
    ledgers: Ledgers, log: str, ledger_id: LedgerId, *, last_txid: int, created_ms: int
) -> Sealed:
    """As `seal_of`, without fencing: what is confirmed now is taken for the end."""
    async with opened(ledgers, ledger_id) as reader:
        if reader.closed:
            return await seal_of(
                ledgers, log, ledger_id, last_txid=last_txid, created_ms=created_ms
            )
        last = await reader.read_last_add_confirmed()
        if last == NO_ENTRY:
            return Sealed.empty(last_txid, created_ms)
        header = await header_of(reader, last)
    return Sealed(EntryId(last), header.end_index, 0, last_txid, header.last_txid, 0, 0)


@mutation("seeds", logs=True)
def fences_only_the_last_ledger(patch: Patch) -> None:
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, effect: TakeoverEffect) -> takeover.TakeoverEvent:
        if isinstance(effect, takeover.RecoverSegment):
            manifest, _ = await self._node.read()
            if manifest.last is not None and manifest.last.number != effect.number:
                sealed = await _seal_by_lac(
                    self._ledgers,
                    self._node.log,
                    effect.ledger_id,
                    last_txid=effect.last_txid,
                    created_ms=0,
                )
                return takeover.SegmentRecovered(effect.number, sealed)
        return await honest(self, effect)

    patch.set(TakeoverDriver, "_execute", execute)


@mutation("seeds", logs=True)
def swaps_before_it_recovers(patch: Patch) -> None:
    """The end is what is confirmed before; the ledgers are fenced when the log is ours."""
    honest = TakeoverDriver.run

    async def run(self: TakeoverDriver) -> OpenedLog:
        found = await honest(self)
        for segment in found.manifest.segments[-3:-1]:
            await self._ledgers.recover(segment.ledger_id)
        return found

    patch.set(opening, "seal_of", _seal_by_lac)
    patch.set(TakeoverDriver, "run", run)


@mutation("seeds", logs=True)
def switches_before_the_old_ledger_is_confirmed(patch: Patch) -> None:
    def hold(self: LogWriter, on_confirmed: object) -> None:
        assert callable(on_confirmed)
        self._loop.call_soon(on_confirmed)

    def switch(self: LogWriter, ledger: LedgerAppender, segment: int) -> LedgerAppender:
        before, self._ledger = self._ledger, ledger
        self._segment = segment
        self._segment_first = self._sent_offset
        self._segment_bytes = 0
        self._on_confirmed = None
        self._pump()
        return before

    patch.set(LogWriter, "hold", hold)
    patch.set(LogWriter, "switch", switch)


@mutation("seeds", logs=True)
def appends_before_the_swap(patch: Patch) -> None:
    """The ledger is handed out while the manifest is still being written."""
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, effect: TakeoverEffect) -> takeover.TakeoverEvent:
        if not isinstance(effect, takeover.WriteManifest):
            return await honest(self, effect)
        manifest, version, node = effect.manifest, effect.version, self._node

        async def write_later() -> None:
            await asyncio.sleep(SWAP_LATER_S)
            try:
                await node.write(manifest, version)
            except RemoteError:
                return

        asyncio.get_running_loop().create_task(write_later())
        return takeover.ManifestWritten(version + 1)

    patch.set(TakeoverDriver, "_execute", execute)


@mutation("seeds", logs=True)
def keeps_what_it_read_before_it_won(patch: Patch) -> None:
    """After a conflict only the version is read anew."""
    honest = Takeover._manifest_read

    def manifest_read(self: Takeover, event: takeover.ManifestRead) -> TakeoverEffect:
        if self._manifest is not None and event.manifest is not None:
            event = takeover.ManifestRead(self._manifest, event.version)
        return honest(self, event)

    patch.set(Takeover, "_manifest_read", manifest_read)


@mutation("seeds", logs=True)
def deletes_its_ledger_although_the_swap_may_have_arrived(patch: Patch) -> None:
    honest = Takeover._failed

    def failed(self: Takeover, error: LogError) -> TakeoverEffect:
        if self._phase is takeover.Phase.WRITING and error.outcome_unknown:
            return self._discard(error)
        return honest(self, error)

    patch.set(Takeover, "_failed", failed)


@mutation("", logs=True)
def uses_the_number_of_an_empty_segment_again(patch: Patch) -> None:
    honest = Manifest.with_segment

    def with_segment(self: Manifest, number: int, ledger_id: LedgerId, created_ms: int) -> Manifest:
        last = self.last
        if last is not None and last.sealed is not None and last.sealed.records == 0:
            again = replace(last, ledger_id=ledger_id, created_ms=created_ms, sealed=None)
            return replace(
                self,
                segments=(*self.segments[:-1], again),
                deleting=(*self.deleting, last.ledger_id),
                next_segment=max(self.next_segment, number + 1),
            )
        return honest(self, number, ledger_id, created_ms)

    patch.set(Manifest, "with_segment", with_segment)


@mutation("", logs=True)
def trims_the_segment_of_the_trim_point(patch: Patch) -> None:
    honest = Manifest.trimmed

    def trimmed(self: Manifest, before: int) -> Manifest:
        for segment in self.segments[:-1]:
            first, end = segment.first_offset, segment.end_offset
            if first is not None and end is not None and first < before < end:
                return replace(honest(self, end), trim_offset=max(self.trim_offset, before))
        return honest(self, before)

    patch.set(Manifest, "trimmed", trimmed)


@mutation("", logs=True)
def deletes_ledgers_before_the_manifest_says_so(patch: Patch) -> None:
    async def truncate(self: LogWriter, before: int) -> None:
        manifest, _ = await self._node.read()
        for ledger_id in manifest.trimmed(before).deleting:
            await self._ledgers.delete(ledger_id)
        edit = trim(self.log, before, incarnation=self._incarnation)
        await manifests.delete_listed(self._ledgers, self._node, await self._node.edit(edit))

    patch.set(LogWriter, "truncate", truncate)


@mutation("", logs=True)
def sweeps_up_the_current_segment(patch: Patch) -> None:
    """The janitor knows a segment by its seal."""

    def standing(ledger_id: LedgerId, stamp: Stamp, manifest: Manifest | None) -> Standing:
        if manifest is not None:
            sealed = tuple(segment for segment in manifest.segments if segment.sealed)
            manifest = replace(manifest, segments=sealed)
        return orphans.standing(ledger_id, stamp, manifest)

    patch.set(survey, "standing", standing)


@mutation("", logs=True)
def sweeps_up_what_is_about_to_be_listed(patch: Patch) -> None:
    def standing(ledger_id: LedgerId, stamp: Stamp, manifest: Manifest | None) -> Standing:
        found = orphans.standing(ledger_id, stamp, manifest)
        return Standing.UNLISTED if found is Standing.PENDING else found

    patch.set(survey, "standing", standing)


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


@mutation("", logs=True)
def takes_the_next_offset_from_the_lac(patch: Patch) -> None:
    """Not from the last record that recovery found."""

    async def seal(
        ledgers: Ledgers, log: str, ledger_id: LedgerId, *, last_txid: int, created_ms: int
    ) -> Sealed:
        seen = await _seal_by_lac(
            ledgers, log, ledger_id, last_txid=last_txid, created_ms=created_ms
        )
        true = await seal_of(ledgers, log, ledger_id, last_txid=last_txid, created_ms=created_ms)
        return replace(true, records=seen.records, last_txid=seen.last_txid)

    patch.set(opening, "seal_of", seal)


@mutation("", logs=True)
def jumps_over_what_was_trimmed(patch: Patch) -> None:
    honest = Cursor._manifest_seen

    def manifest_seen(self: Cursor, manifest: Manifest | None) -> CursorEffect:
        if manifest is not None and not manifest.dropped and self._next < manifest.trim_offset:
            self._next = manifest.trim_offset
            self._phase = self._phase.LOCATING
        return honest(self, manifest)

    patch.set(Cursor, "_manifest_seen", manifest_seen)


@mutation("", logs=True)
def acknowledges_what_it_has_only_sent(patch: Patch) -> None:
    honest = LogWriter._send

    def send(self: LogWriter, group: Group) -> None:
        offset = self._sent_offset
        honest(self, group)
        group.outcome.confirm(offset, self._segment, self._packer.in_flight)

    patch.set(LogWriter, "_send", send)


@mutation("", logs=True)
def calls_refused_what_it_has_sent(patch: Patch) -> None:
    def outcome_unknown(log: str, _offset: int, reason: str) -> LostOwnership:
        return LostOwnership(log, reason)

    patch.set(writer, "AppendOutcomeUnknown", outcome_unknown)


@mutation("#203", logs=True)
def takes_the_last_add_confirmed_for_a_barrier(patch: Patch) -> None:
    async def end(
        ledgers: Ledgers,
        node: ManifestNode,
        *,
        timeout_s: float = 0.0,
        incarnation: str | None = None,
    ) -> int:
        manifest, _ = await node.read()
        if incarnation not in {None, manifest.incarnation}:
            raise NoSuchLog(node.log)
        return (await tail_of(ledgers, node.log)).next_offset

    patch.set(reader, "acknowledged_end", end)


@mutation("seeds", logs=True)
def leaves_a_segment_before_its_writer_did(patch: Patch) -> None:
    """The next segment is listed, so the one before is taken to be complete."""

    async def learn(_: Ledgers, tail: LedgerTail, __: LedgerId) -> EntryId | None:
        return await tail.read_last_add_confirmed()

    patch.set(chunks, "learn_end", learn)


@mutation("own bug", logs=True)
def seals_by_the_number_alone(patch: Patch) -> None:
    """A writer that closed in the middle of a roll sealed the segment of who took it over."""

    def seal_segment(
        log: str, number: int, _ledger_id: LedgerId, sealed: Sealed, *, now_ms: int
    ) -> Edit:
        def edit(manifest: Manifest) -> Manifest:
            segment = manifest.find(number)
            if segment is None or segment.sealed is not None:
                return manifest
            if any(s.sealed is None and s.number < number for s in manifest.segments):
                raise LostOwnership(log)
            manifest = manifest.with_sealed(number, sealed)
            return manifest.trimmed(manifest.retained_from(now_ms))

        return edit

    patch.set(writer, "seal_segment", seal_segment)
    patch.set(rolling, "seal_segment", seal_segment)


@mutation("own bug", logs=True)
def trims_another_log_of_the_same_name(patch: Patch) -> None:
    def trim_by_name(_log: str, before: int, *, incarnation: str) -> Edit:
        assert incarnation
        return lambda manifest: manifest.trimmed(before)

    patch.set(writer, "trim", trim_by_name)


@mutation("own bug", logs=True)
def lists_its_segment_in_another_log_of_the_same_name(patch: Patch) -> None:
    def add_segment(
        log: str,
        *,
        incarnation: str,
        own_segment: int,
        number: int,
        ledger_id: LedgerId,
        now_ms: int,
    ) -> Edit:
        assert incarnation

        def edit(manifest: Manifest) -> Manifest:
            last = manifest.last
            if last is not None and last.number == number and last.ledger_id == ledger_id:
                return manifest
            if last is None or last.number != own_segment or manifest.next_segment != number:
                raise LostOwnership(log)
            check_writable(manifest, log)
            return manifest.with_segment(number, ledger_id, now_ms)

        return edit

    patch.set(rolling, "add_segment", add_segment)


@mutation("own bug", logs=True)
def forgets_the_txid_of_what_was_trimmed(patch: Patch) -> None:
    honest = Manifest.trimmed

    def trimmed(self: Manifest, before: int) -> Manifest:
        return replace(honest(self, before), trimmed_txid=self.trimmed_txid)

    patch.set(Manifest, "trimmed", trimmed)


@mutation("own bug", logs=True)
def writes_by_the_version_alone(patch: Patch) -> None:
    """A node that was deleted and made again is at the same version one day."""

    async def write(self: ManifestNode, manifest: Manifest, version: int) -> int:
        try:
            await self._store.set(self.path, manifest.encode(self.log), version)
        except NoSuchNode:
            raise NoSuchLog(self.log) from None
        return version + 1

    patch.set(ManifestNode, "write", write)


@mutation("own bug", logs=True)
def deletes_by_the_version_alone(patch: Patch) -> None:
    async def delete(self: ManifestNode, _incarnation: str, version: int) -> None:
        try:
            marks = [c for c in await self._store.children(self.path) if c.startswith("inc")]
            gone = [DeleteOp(f"{self.path}/{mark}") for mark in marks]
            await self._store.multi([*gone, DeleteOp(self.path, version)])
        except NoSuchNode:
            return

    patch.set(ManifestNode, "delete", delete)


@mutation("own bug", logs=True)
def creates_a_log_again_that_was_deleted(patch: Patch) -> None:
    """The first attempt's reply was lost; the second one is the same incarnation."""

    async def create(self: ManifestNode, manifest: Manifest) -> Manifest:
        made = CreateOp(self.path, manifest.encode(self.log))
        for attempt in range(1, manifests.LOST_REPLIES_MAX + 1):
            try:
                await self._make_parent()
                await self._store.multi([made, CreateOp(self.mark_of(manifest.life))])
            except NodeExists:
                found, _ = await self.read()
                if found.incarnation != manifest.incarnation:
                    raise LogExists(self.log) from None
                return found
            except MetadataUnavailable:
                if attempt == manifests.LOST_REPLIES_MAX:
                    raise
            else:
                return manifest
        raise AssertionError("the loop returns or raises")

    patch.set(ManifestNode, "create", create)


@mutation("own bug", logs=True)
def takes_a_ledger_that_is_gone_for_trouble(patch: Patch) -> None:
    honest = Takeover._failed

    def failed(self: Takeover, error: LogError) -> TakeoverEffect:
        if isinstance(error, NoSuchLedger):
            self._troubles += 1
            if self._troubles >= takeover.TROUBLES_MAX:
                return self._give_up(error)
        return honest(self, error)

    patch.set(Takeover, "_failed", failed)


@mutation("own bug", logs=True)
def leaves_its_lock_behind(patch: Patch) -> None:
    """The metadata store does not answer, the session lives on."""

    async def unlock(self: ConsumerNode) -> None:
        with suppress(LogError):
            await self._unlock()

    patch.set(ConsumerNode, "unlock", unlock)


@mutation("", logs=True)
def serves_before_it_has_read_the_end(patch: Patch) -> None:
    async def catch_up(_self: Standby, _term: Term, _log: Log) -> None:
        return

    patch.set(Standby, "_catch_up", catch_up)


@mutation("", logs=True)
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
