"""Bugs of what is asked for: deletions, resets, settings, offsets and whole calls."""

from collections.abc import Callable
from dataclasses import replace

from dlog.aio import admin, store
from dlog.aio.port import Ledgers
from dlog.aio.store import ManifestNode
from dlog.aio.write import segment_roll
from dlog.columns import total_bytes
from dlog.manifest import Manifest
from dlog.names import LOGS_PATH
from dlog.protocol import consumer_steps, lifecycle
from dlog.protocol.accumulator import RecordAccumulator
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.edits import Edit, check_living
from dlog.protocol.packer import Packer, Part
from dlog.protocol.pending_batch import PendingBatch
from dlog.settings import LogSettings
from ledger.errors import LogError
from ledger.metastore.ops import CheckOp
from ledger.protocol.procedure import Steps
from tests.simulation.mutations.mutation import Patch, mutation


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_what_is_given_up.py"
    "::test_a_roll_that_meets_the_deletion_of_its_log_leaves_the_ledgers_to_it",
)
def deletes_the_ledgers_of_a_dropped_log_without_a_fence(patch: Patch) -> None:
    """A roll finds the log dropped, and does what the deletion has to do after its fencing.

    A seed found it; leader and deletion have to sleep at just these steps, which a thousand seeds
    may miss."""
    honest = store.delete_listed

    async def delete_listed(
        ledgers: Ledgers, node: ManifestNode, manifest: Manifest, **_: object
    ) -> Manifest:
        return await honest(ledgers, node, manifest, fenced=True)

    patch.set(segment_roll, "delete_listed", delete_listed)


@mutation(
    "",
    logs=True,
    test="tests/dlog/protocol/test_interrupted_procedures.py"
    "::test_a_deletion_that_stops_anywhere_is_finished_by_somebody",
)
def drops_a_log_without_fencing_it(patch: Patch) -> None:
    def fence_none(_: Manifest) -> Steps[None]:
        yield from ()

    patch.set(lifecycle, "_fence_last", fence_none)


@mutation("", logs=True)
def looks_at_the_expected_offset_of_the_first_record_only(patch: Patch) -> None:
    honest = RecordAccumulator._refusal

    def refusal(
        self: RecordAccumulator, size: int, txid: int | None, expected_offset: int | None
    ) -> LogError | None:
        first = expected_offset if self.next_offset == 0 else None
        return honest(self, size, txid, first)

    patch.set(RecordAccumulator, "_refusal", refusal)


@mutation(
    "",
    logs=True,
    test="tests/dlog/protocol/test_packer.py"
    "::test_many_records_that_fit_one_entry_are_not_torn_apart",
)
def spreads_one_call_over_two_entries(patch: Patch) -> None:
    honest = Packer.add_many

    def add_many(
        self: Packer,
        batch: PendingBatch,
        now_ms: Callable[[], int],
    ) -> list[Part]:
        middle = len(batch.records) // 2
        if not middle:
            return honest(self, batch, now_ms)
        first, rest = PendingBatch(batch.records[:middle]), PendingBatch(batch.records[middle:])
        for half in (first, rest):
            half.size_bytes, half.has_rows = total_bytes(half.records), batch.has_rows
        rest.newest_txid = batch.newest_txid
        parts = honest(self, first, now_ms)
        self._shut_open()
        return parts + honest(self, rest, now_ms)

    patch.set(Packer, "add_many", add_many)


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/dlog/sync/test_sync_log.py"
    "::test_records_that_gather_while_others_wait_get_the_ids_of_their_places",
)
def finds_records_of_threads_at_the_start_of_the_batch_that_they_joined(patch: Patch) -> None:
    """The simulator appends on the loop alone."""
    honest = PendingBatch.moved_to

    def moved_to(self: PendingBatch, batch: PendingBatch, _slot: int) -> None:
        honest(self, batch, 0)

    patch.set(PendingBatch, "moved_to", moved_to)


@mutation("", logs=True)
def takes_every_other_setting_back_to_its_default(patch: Patch) -> None:
    """To what it was when the log was made, whatever others changed meanwhile."""

    def change_settings(
        log: str, *, incarnation: str, change: Callable[[LogSettings], LogSettings]
    ) -> Edit:
        seen: list[LogSettings] = []

        def edit(manifest: Manifest) -> Manifest:
            check_living(manifest, log)
            assert incarnation
            seen.append(manifest.settings)
            return replace(manifest, settings=change(seen[0]))

        return edit

    patch.set(admin, "change_settings", change_settings)


@mutation("", logs=True)
def resets_a_consumer_within_its_epoch(patch: Patch) -> None:
    """Who has it open goes on, and commits over what was asked for."""

    def was_reset(self: ConsumerState, offset: int, *, owner: str, now_ms: int) -> ConsumerState:
        return replace(self, position=offset, owner=owner, updated_ms=now_ms)

    patch.set(ConsumerState, "was_reset", was_reset)


@mutation(
    "",
    logs=True,
    test="tests/dlog/protocol/test_consuming.py"
    "::test_whose_clock_is_behind_fences_like_anybody_else",
)
def believes_the_clock_of_who_opened_it_last(patch: Patch) -> None:
    """A state that seems to be of later is left as it is."""
    honest = ConsumerState.opened

    def opened(self: ConsumerState, *, exclusive: bool, owner: str, now_ms: int) -> ConsumerState:
        if self.updated_ms > now_ms and self.exclusive == exclusive:
            return self
        return honest(self, exclusive=exclusive, owner=owner, now_ms=now_ms)

    patch.set(ConsumerState, "opened", opened)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_aio_consumer.py"
    "::test_a_deletion_that_slept_leaves_the_consumers_of_the_log_made_anew",
)
def deletes_consumers_by_the_name_of_their_log(patch: Patch) -> None:
    """Those of a log that was re-created under it, by a deletion that slept. A seed found it; the
    sleep has to last until the new log has a consumer, which a thousand seeds may miss."""

    def delete_consumers(log: str, _own: CheckOp) -> Steps[None]:
        there_is_some_log = CheckOp(LOGS_PATH)
        return consumer_steps.delete_consumers(log, there_is_some_log)

    patch.set(lifecycle, "delete_consumers", delete_consumers)
