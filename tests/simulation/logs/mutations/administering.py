"""Bugs of procedures: what somebody else did between two of their actions, or what got no answer.

None of these has to be drawn: of what administers logs there is little in a world, and it is to be
stopped at just one action while somebody else does just one thing. `test_interrupted_procedures`
goes through all of that.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from dlog.errors import LogExists
from dlog.manifest import Manifest, Sealed
from dlog.protocol import consumer_steps, edits, lifecycle
from dlog.protocol.actions import Transact
from dlog.protocol.consumer_steps import ConsumerSteps
from dlog.protocol.edits import Edit, check_living
from dlog.protocol.lifecycle import Incarnations
from dlog.protocol.manifest_steps import LOST_REPLIES_MAX, ManifestSteps
from ledger.errors import MetadataUnavailable, NodeExists
from ledger.metastore.ops import ANY_VERSION, CheckOp, CreateOp, DeleteOp, Op
from ledger.protocol.procedure import Steps
from tests.simulation.mutations.mutation import Patch, mutation

_ANYWHERE: Final = "tests/dlog/protocol/test_interrupted_procedures.py"


# Sealing.


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_seal_that_stops_anywhere_is_a_seal_or_none",
)
def seals_over_who_took_the_log_over(patch: Patch) -> None:
    """A segment that was listed after the look is not fenced, and its writer goes on."""

    def end_log(log: str, *, incarnation: str, ends: Mapping[int, Sealed]) -> Edit:
        def edit(manifest: Manifest) -> Manifest:
            check_living(manifest, log)
            if manifest.incarnation != incarnation:
                return manifest
            for number, sealed in ends.items():
                found = manifest.find(number)
                if found is not None and found.sealed is None:
                    manifest = manifest.with_sealed(number, sealed)
            return replace(manifest, sealed=True)

        return edit

    patch.set(lifecycle, "end_log", end_log)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_seal_that_stops_anywhere_is_a_seal_or_none",
)
def seals_whatever_has_the_name_by_then(patch: Patch) -> None:
    def end_log(log: str, *, incarnation: str, ends: Mapping[int, Sealed]) -> Edit:
        assert incarnation

        def edit(manifest: Manifest) -> Manifest:
            return edits.end_log(log, incarnation=manifest.incarnation, ends=ends)(manifest)

        return edit

    patch.set(lifecycle, "end_log", end_log)


# Renaming.


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_rename_that_stops_anywhere_has_moved_all_or_nothing",
)
def renames_whatever_has_the_name_by_then(patch: Patch) -> None:
    honest = lifecycle._found

    def found(node: ManifestSteps, _incarnation: str | None) -> Steps[tuple[Manifest, int] | None]:
        return honest(node, None)

    patch.set(lifecycle, "_found", found)


def _without_version(patch: Patch, loosened: Callable[[str, ManifestSteps], bool]) -> None:
    """Let a rename delete some nodes of the old name whatever was written to them meanwhile."""
    honest = lifecycle._ops

    def ops(
        node: ManifestSteps, new: ManifestSteps, found: tuple[Manifest, int], now_ms: int
    ) -> Steps[list[Op]]:
        strict = yield from honest(node, new, found, now_ms)
        return [
            replace(op, version=ANY_VERSION)
            if isinstance(op, DeleteOp) and loosened(op.path, node)
            else op
            for op in strict
        ]

    patch.set(lifecycle, "_ops", ops)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_rename_that_stops_anywhere_has_moved_all_or_nothing",
)
def moves_a_consumer_as_it_was_before_a_commit(patch: Patch) -> None:
    _without_version(patch, lambda path, node: path.startswith(f"{node.path}/consumers/"))


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_rename_that_stops_anywhere_has_moved_all_or_nothing",
)
def moves_a_consumer_that_was_deleted(patch: Patch) -> None:
    """Another one has its name, at the same version."""
    _without_version(patch, lambda path, node: path == f"{node.path}/consumers")


# Creating and deleting.


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_deletion_that_stops_anywhere_is_finished_by_somebody",
)
def remembers_the_names_of_a_log_that_is_gone(patch: Patch) -> None:
    def forget_rename(_incarnation: str) -> Steps[None]:
        yield from ()

    patch.set(lifecycle, "forget_rename", forget_rename)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_deletion_that_stops_anywhere_is_finished_by_somebody",
)
def deletes_a_log_before_its_ledgers(patch: Patch) -> None:
    """Who dies in between leaves them to nobody."""

    def delete_listed(
        _: ManifestSteps, manifest: Manifest, *, fenced: bool = False
    ) -> Steps[Manifest]:
        assert fenced
        yield from ()
        return manifest

    patch.set(lifecycle, "delete_listed", delete_listed)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_creation_that_stops_anywhere_makes_one_log_or_none",
)
def takes_its_own_log_for_somebody_elses(patch: Patch) -> None:
    """The reply to its creation was lost, and it is refused by what it has created itself."""

    def create(
        self: ManifestSteps, manifest: Manifest, *, incarnations: Incarnations
    ) -> Steps[Manifest]:
        for _ in range(LOST_REPLIES_MAX):
            made = CreateOp(self.path, manifest.encode(self.log))
            try:
                yield from self._make_parent()
                yield from Transact((made, CreateOp(self.mark_of(manifest.life))))
            except NodeExists:
                raise LogExists(self.log) from None
            except MetadataUnavailable:
                manifest = replace(manifest, incarnation=incarnations())
            else:
                return manifest
        raise MetadataUnavailable("memory", "create", 1.0)

    patch.set(ManifestSteps, "create", create)


# Consumers.


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_consumer_that_is_begun_anywhere_is_of_a_log_that_lives",
)
def begins_a_consumer_of_a_log_that_is_gone(patch: Patch) -> None:
    """Below the one that has its name by then."""

    def guard(self: ManifestSteps, _life: str, _version: int) -> Steps[tuple[CheckOp, ...]]:
        yield from ()
        return (CheckOp(self.path),)

    patch.set(ManifestSteps, "guard", guard)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_commit_that_stops_anywhere_moves_its_own_consumer_or_none",
)
def forgets_a_consumer_without_counting_it(patch: Patch) -> None:
    """So nobody can tell it from the one that is begun under its name, at the same version."""

    def delete(self: ConsumerSteps) -> Steps[None]:
        yield from Transact((DeleteOp(self.path),))

    patch.set(ConsumerSteps, "delete", delete)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_ANYWHERE}::test_a_reset_that_stops_anywhere_is_done_or_not",
)
def believes_that_a_change_without_an_answer_was_made(patch: Patch) -> None:
    def hopeful(ops: Iterable[Op]) -> Steps[None]:
        with suppress(MetadataUnavailable):
            yield from Transact(tuple(ops))

    patch.set(consumer_steps, "Transact", hopeful)
