"""Bugs of logs that are deleted and re-created: versions and names that mean another one."""

from dataclasses import replace

from dlog.aio.maintain import trim
from dlog.aio.store import ConsumerNode
from dlog.aio.write import segment_roll, writer
from dlog.errors import LostOwnership, NoSuchLog
from dlog.manifest import Manifest
from dlog.protocol import edits, lifecycle
from dlog.protocol.actions import Children, Transact
from dlog.protocol.consumer_steps import ConsumerState, ConsumerSteps
from dlog.protocol.edits import Edit, check_writable
from dlog.protocol.lifecycle import Incarnations
from dlog.protocol.manifest_steps import ManifestSteps
from ledger.errors import MetadataUnavailable, NoSuchNode
from ledger.ids import LedgerId
from ledger.metastore.ops import DeleteOp, Op, SetOp
from ledger.protocol.procedure import Steps
from tests.simulation.mutations.mutation import Patch, mutation


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

    patch.set(segment_roll, "add_segment", add_segment)


@mutation(
    "own bug",
    logs=True,
    test="tests/dlog/protocol/test_interrupted_procedures.py"
    "::test_a_deletion_that_stops_before_it_has_begun_deletes_nothing",
)
def writes_by_the_version_alone(patch: Patch) -> None:
    """A node that was deleted and re-created is at the same version one day."""

    def write(self: ManifestSteps, manifest: Manifest, version: int) -> Steps[int]:
        try:
            yield from Transact((SetOp(self.path, manifest.encode(self.log), version),))
        except NoSuchNode:
            raise NoSuchLog(self.log) from None
        return version + 1

    patch.set(ManifestSteps, "write", write)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_manifest_node.py"
    "::test_a_deletion_meant_for_the_log_before_leaves_the_one_made_anew",
)
def deletes_by_the_version_alone(patch: Patch) -> None:
    """A seed found it; the re-created log has to be at the version of the one before when the
    deletion wakes up, which a thousand seeds may miss."""

    def delete(self: ManifestSteps, _life: str, version: int) -> Steps[None]:
        try:
            marks = [c for c in (yield from Children(self.path)) if c.startswith("inc")]
            gone = [DeleteOp(f"{self.path}/{mark}") for mark in marks]
            yield from Transact((*gone, DeleteOp(self.path, version)))
        except NoSuchNode:
            return

    patch.set(ManifestSteps, "delete", delete)


@mutation(
    "own bug",
    logs=True,
    test="tests/dlog/protocol/test_interrupted_procedures.py"
    "::test_a_creation_that_stops_anywhere_makes_one_log_or_none",
)
def creates_a_log_again_that_was_deleted(patch: Patch) -> None:
    """The first attempt's reply was lost; the second one is the same incarnation."""

    honest = ManifestSteps.create

    def create(
        self: ManifestSteps, manifest: Manifest, *, incarnations: Incarnations
    ) -> Steps[Manifest]:
        assert callable(incarnations)
        return honest(self, manifest, incarnations=lambda: manifest.incarnation)

    patch.set(ManifestSteps, "create", create)


@mutation(
    "own bug",
    logs=True,
    test="tests/dlog/protocol/test_interrupted_procedures.py"
    "::test_a_commit_that_stops_anywhere_moves_its_own_consumer_or_none",
)
def commits_by_the_version_alone(patch: Patch) -> None:
    """To whatever consumer has the name by then, of whatever log."""

    def guard(_: ConsumerSteps, wanted: ConsumerState) -> tuple[Op, ...]:
        assert wanted.incarnation
        return ()

    patch.set(ConsumerSteps, "_guard", guard)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_trimming.py"
    "::test_retention_takes_nothing_from_consumers_that_a_rename_took_along",
)
def looks_for_consumers_under_an_old_name(patch: Patch) -> None:
    """Those of a log that was renamed meanwhile are gone from there, and nobody waits for them.

    A seed found it; a rename has to fall between two reads of the same pass, which thousands of
    seeds may miss."""

    def retain(log: str, *, seen: Manifest, now_ms: int, processed: int | None) -> Edit:
        def edit(manifest: Manifest) -> Manifest:
            here = replace(seen, renames=manifest.renames)
            return edits.retain(log, seen=here, now_ms=now_ms, processed=processed)(manifest)

        return edit

    patch.set(trim, "retain", retain)


@mutation(
    "own bug",
    logs=True,
    test="tests/dlog/aio/test_namespace.py::test_a_deletion_that_slept_leaves_the_log_made_anew_alone",
)
def deletes_whatever_has_the_name_by_then(patch: Patch) -> None:
    def drop_by_name(_log: str, *, incarnation: str) -> Edit:
        assert incarnation
        return lambda manifest: manifest if manifest.dropped else manifest.dropping()

    patch.set(lifecycle, "drop_log", drop_by_name)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_aio_consumer.py"
    "::test_a_handle_of_a_deleted_consumer_never_moves_the_one_made_anew",
)
def commits_to_a_consumer_that_was_made_anew(patch: Patch) -> None:
    """Not drawn: nobody deletes a consumer of a log that stays."""
    honest = ConsumerSteps._guard

    def guard(self: ConsumerSteps, wanted: ConsumerState) -> tuple[Op, ...]:
        return honest(self, wanted)[:1]

    patch.set(ConsumerSteps, "_guard", guard)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_aio_consumer.py"
    "::test_a_shared_open_whose_lock_got_no_answer_leaves_none_behind",
)
def forgets_a_lock_that_got_no_answer(patch: Patch) -> None:
    """Not drawn: the end of a process ends its session, and its lock with it."""
    honest = ConsumerNode.lock

    async def lock(self: ConsumerNode, owner: str, *, wait_s: float) -> None:
        try:
            await honest(self, owner, wait_s=wait_s)
        except MetadataUnavailable:
            self.steps._token = "of another one"
            raise

    patch.set(ConsumerNode, "lock", lock)
