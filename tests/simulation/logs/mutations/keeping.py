"""Bugs of truncation, retention and the janitor: what goes, and when."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dlog.aio import store as manifests
from dlog.aio.maintain import audit, janitor, survey
from dlog.aio.maintain import trim as trimming
from dlog.aio.maintain.survey import Survey, Unlisted, Visit
from dlog.aio.maintain.trim import Before
from dlog.aio.port import Ledgers
from dlog.aio.read import places
from dlog.aio.store import ManifestNode, log_names, read_consumers
from dlog.aio.write import writer
from dlog.aio.write.writer import LogWriter
from dlog.errors import InvalidPosition, ManifestTooLarge
from dlog.manifest import Manifest
from dlog.position import Timestamp
from dlog.protocol import lifecycle, orphans, retention
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.edits import Edit, forget_deleted, trim
from dlog.protocol.orphans import OrphanKind, Stamp
from ledger.ids import LedgerId
from ledger.metastore.port import MetadataStore
from ledger.protocol.procedure import Steps
from tests.simulation.mutations.mutation import Patch, mutation

_GIVEN_UP: Final = "tests/dlog/aio/test_what_is_given_up.py"


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
def trims_the_first_record_to_keep(patch: Patch) -> None:
    def trim_behind(log: str, before: int, *, incarnation: str) -> Edit:
        return trim(log, before + 1, incarnation=incarnation)

    patch.set(writer, "trim", trim_behind)
    patch.set(trimming, "trim", trim_behind)


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

    def standing(ledger_id: LedgerId, stamp: Stamp, manifest: Manifest | None) -> OrphanKind:
        if manifest is not None:
            sealed = tuple(segment for segment in manifest.segments if segment.sealed)
            manifest = replace(manifest, segments=sealed)
        return orphans.standing(ledger_id, stamp, manifest)

    def unlisted(self: Survey) -> list[LedgerId]:
        return [LedgerId(each) for each in self.ledgers]

    patch.set(survey, "standing", standing)
    patch.set(Survey, "unlisted", unlisted)


@mutation("", logs=True)
def sweeps_up_what_is_about_to_be_listed(patch: Patch) -> None:
    def standing(ledger_id: LedgerId, stamp: Stamp, manifest: Manifest | None) -> OrphanKind:
        found = orphans.standing(ledger_id, stamp, manifest)
        return OrphanKind.UNLISTED if found is OrphanKind.PENDING else found

    patch.set(survey, "standing", standing)


@mutation("own bug", logs=True)
def forgets_the_txid_of_what_was_trimmed(patch: Patch) -> None:
    honest = Manifest.trimmed

    def trimmed(self: Manifest, before: int) -> Manifest:
        return replace(honest(self, before), trimmed_txid=self.trimmed_txid)

    patch.set(Manifest, "trimmed", trimmed)


@mutation("", logs=True)
def retention_counts_the_segment_that_it_takes(patch: Patch) -> None:
    """So less is kept than the settings say."""
    honest = Manifest.retained_from

    def retained_from(self: Manifest, now_ms: int, *, processed: int | None = None) -> int:
        wanted = self.settings.retention_bytes
        sealed = [segment.sealed for segment in self.segments if segment.sealed]
        if not wanted or not sealed:
            return honest(self, now_ms, processed=processed)
        settings = replace(self.settings, retention_bytes=max(1, wanted - sealed[0].bytes))
        return honest(replace(self, settings=settings), now_ms, processed=processed)

    patch.set(Manifest, "retained_from", retained_from)


@mutation("", logs=True)
def retention_goes_by_the_first_record_of_a_segment(patch: Patch) -> None:
    honest = Manifest.retained_from

    def retained_from(self: Manifest, now_ms: int, *, processed: int | None = None) -> int:
        segments = tuple(
            segment
            if segment.sealed is None
            else replace(
                segment,
                sealed=replace(segment.sealed, last_timestamp_ms=segment.sealed.first_timestamp_ms),
            )
            for segment in self.segments
        )
        return honest(replace(self, segments=segments), now_ms, processed=processed)

    patch.set(Manifest, "retained_from", retained_from)


@mutation("", logs=True)
def retention_does_not_wait_for_consumers(patch: Patch) -> None:
    honest = Manifest.retained_from

    def retained_from(self: Manifest, now_ms: int, *, processed: int | None = None) -> int:
        assert processed is None or processed >= 0
        return honest(self, now_ms, processed=self.sealed_end)

    patch.set(Manifest, "retained_from", retained_from)


@mutation("", logs=True)
def retention_takes_a_part_of_a_segment(patch: Patch) -> None:
    """Of the last one that is sealed, up to where enough would be left."""
    honest = Manifest.retained_from

    def retained_from(self: Manifest, now_ms: int, *, processed: int | None = None) -> int:
        trim = honest(self, now_ms, processed=processed)
        beyond = [s for s in self.segments if s.sealed and (s.end_offset or 0) > trim + 1]
        return trim + 1 if beyond and trim > self.trim_offset else trim

    patch.set(Manifest, "retained_from", retained_from)


@mutation("", logs=True)
def the_janitor_forgets_retention(patch: Patch) -> None:
    async def forgets(_: Ledgers, __: ManifestNode, manifest: Manifest, *, now_ms: int) -> Manifest:
        assert now_ms
        return manifest

    patch.set(janitor, "apply_retention", forgets)


@mutation("", logs=True)
def the_janitor_leaves_ledgers_behind(patch: Patch) -> None:
    """It clears the list of what is to be deleted, and deletes nothing."""

    async def delete_listed(_: Ledgers, node: ManifestNode, manifest: Manifest) -> Manifest:
        return await node.edit(forget_deleted(manifest.deleting))

    patch.set(janitor, "delete_listed", delete_listed)
    patch.set(janitor, "remove_orphan", _keep)


async def _keep(_: Ledgers, orphan: Unlisted) -> LedgerId:
    return orphan.ledger_id


@mutation("", logs=True)
def a_log_that_no_list_names_is_gone(patch: Patch) -> None:
    """One flipped bit in an index was enough, and the janitor deleted all of it."""
    honest = survey.look_at

    async def look_at(ledgers: Ledgers, found: Survey, ledger_id: LedgerId) -> Unlisted | None:
        each = await honest(ledgers, found, ledger_id)
        if each is None or each.stamp is None or each.stamp.incarnation in found.names:
            return each
        return replace(each, standing=OrphanKind.LOG_GONE)

    patch.set(survey, "look_at", look_at)


@mutation("", logs=True)
def a_log_that_is_listed_and_not_found_is_passed_over(patch: Patch) -> None:
    async def hidden_of(_store: MetadataStore, _above: str, _paths: Sequence[str]) -> list[str]:
        return []

    patch.set(survey, "hidden_of", hidden_of)


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_janitor.py"
    "::test_a_ledger_made_during_the_look_is_neither_missing_nor_an_orphan",
)
def lists_the_logs_before_the_ledgers(patch: Patch) -> None:
    """Ledgers of a log that is made in between belong to none. Not drawn: a whole log has to be.

    A list of logs that lags does no harm by itself: one server was asked for the ledgers before,
    and does not go back behind that."""
    honest = survey.survey
    names: dict[int, list[str]] = {}

    async def look(ledgers: Ledgers, visit: Visit) -> Survey:
        names[id(ledgers.store)] = await log_names(ledgers.store)
        return await honest(ledgers, visit)

    async def old(store: MetadataStore, _prefix: str = "") -> list[str]:
        return names.pop(id(store))

    patch.set(survey, "log_names", old)
    patch.set(janitor, "survey", look)
    patch.set(audit, "survey", look)


@mutation("", logs=True)
def keeps_fewer_bytes_than_asked(patch: Patch) -> None:
    """It counts what goes, not what stays."""

    def offset_keeping_bytes(manifest: Manifest, bytes_min: int, *, open_bytes: int = 0) -> int:
        gone = manifest.segments[0].sealed if manifest.segments else None
        more = 0 if gone is None else gone.bytes
        return retention.offset_keeping_bytes(manifest, bytes_min, open_bytes=open_bytes + more)

    patch.set(trimming, "offset_keeping_bytes", offset_keeping_bytes)


@mutation("", logs=True)
def keeps_younger_records_than_asked(patch: Patch) -> None:
    async def start_offset(ledgers: Ledgers, node: ManifestNode, start: Before) -> int:
        if isinstance(start, Timestamp):
            start = Timestamp(start.value + 500)
        return await places.start_offset(ledgers, node, start)

    patch.set(trimming, "start_offset", start_offset)


@mutation(
    "",
    logs=True,
    test=f"{_GIVEN_UP}::test_a_writer_does_not_truncate_what_it_has_sent_and_is_not_confirmed",
)
def truncates_what_is_not_confirmed(patch: Patch) -> None:
    async def truncate(self: LogWriter, before: int) -> None:
        if not 0 <= before <= self._accumulator.next_offset:
            raise InvalidPosition(
                self.log, before, f"the log ends at {self._accumulator.next_offset}"
            )
        edit = trim(self.log, before, incarnation=self._incarnation)
        await manifests.delete_listed(self._ledgers, self._node, await self._node.edit(edit))

    patch.set(LogWriter, "truncate", truncate)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_GIVEN_UP}::test_nobody_truncates_what_bookies_hold_before_it_is_confirmed",
)
def truncates_what_bookies_hold(patch: Patch) -> None:
    async def acknowledged_end(_: Ledgers, __: ManifestNode) -> int:
        return sys.maxsize

    patch.set(trimming, "acknowledged_end", acknowledged_end)


@mutation(
    "",
    logs=True,
    test=f"{_GIVEN_UP}::test_retention_waits_for_the_slowest_of_several_consumers",
)
def retention_waits_for_the_fastest_consumer(patch: Patch) -> None:
    async def fastest(
        store: MetadataStore, log: str, manifest: Manifest
    ) -> list[tuple[str, ConsumerState]]:
        consumers = await read_consumers(store, log, manifest)
        return sorted(consumers, key=lambda each: each[1].position)[-1:]

    patch.set(trimming, "read_consumers", fastest)


@mutation(
    "",
    logs=True,
    test=f"{_GIVEN_UP}::test_a_deletion_in_the_middle_of_a_roll_fences_both_ledgers_of_the_writer",
)
def drops_a_log_of_which_one_ledger_of_two_is_fenced(patch: Patch) -> None:
    """A writer that does not know yet that its next segment is listed goes on in the one before."""
    honest = lifecycle._fence_last

    def fence_last(manifest: Manifest) -> Steps[None]:
        return honest(replace(manifest, deleting=manifest.deleting[-1:]))

    patch.set(lifecycle, "_fence_last", fence_last)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_full_manifest.py"
    "::test_a_takeover_of_a_full_log_ends_before_anybody_is_fenced",
)
def adds_segments_until_nothing_fits(patch: Patch) -> None:
    """Then there is no room for their seals either. Not drawn: it takes 20,000 segments."""

    def check_room(_: Manifest, __: str) -> None:
        return

    patch.set(Manifest, "check_room", check_room)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_full_manifest.py"
    "::test_a_full_log_is_appended_to_and_read_and_rolls_once_it_is_truncated",
)
def a_full_manifest_ends_the_writer(patch: Patch) -> None:
    """Not drawn, as above."""
    patch.set(ManifestTooLarge, "retryable", False)
