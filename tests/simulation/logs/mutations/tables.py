"""Bugs of tables: rows twice, rows lost, files that go while a manifest names them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlog.aio.maintain import table as driver
from dlog.archive.object_store import ObjectFolder
from dlog.errors import ObjectStorageUnavailable
from dlog.manifest import Manifest
from dlog.protocol import archive
from dlog.protocol import table as protocol
from dlog.protocol.actions import DeleteObject
from dlog.protocol.manifest_steps import ManifestSteps
from dlog.protocol.table import ReadTable, SwapTable, Table, TableExtension, TableFile, WriteRows
from ledger.protocol.procedure import Action, Steps
from tests.simulation.mutations.mutation import Patch, mutation

_TESTS = "tests/dlog/archive/test_tables.py"


def _extend_differently(patch: Patch, act: Callable[[Action[Any]], Steps[Any]]) -> None:
    """Let extensions do what *act* does in place of each action."""
    honest = protocol.extend_table

    def extend_table(node: ManifestSteps, **given: Any) -> Steps[TableExtension | None]:
        steps = honest(node, **given)
        answer: Any = None
        failure: Exception | None = None
        while True:
            try:
                action = steps.send(answer) if failure is None else steps.throw(failure)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            answer, failure = None, None
            try:
                answer = yield from act(action)
            except Exception as error:  # noqa: BLE001 - it is the procedure's
                failure = error

    patch.set(protocol, "extend_table", extend_table)


@mutation("", logs=True)
def takes_a_commit_without_an_answer_for_one_that_failed(patch: Patch) -> None:
    """And deletes its files, which the manifest may name by now."""

    def act(action: Action[Any]) -> Steps[Any]:
        try:
            return (yield action)
        except ObjectStorageUnavailable:
            if isinstance(action, SwapTable):
                before = {file.path for file in action.seen.files} if action.seen else set()
                for file in action.table.files:
                    if file.path not in before:
                        yield DeleteObject(action.storage, file.path)
            raise

    _extend_differently(patch, act)


@mutation("", logs=True)
def adds_its_rows_to_whatever_manifest_there_is(patch: Patch) -> None:
    """Although another attempt has added the same ones."""

    def act(action: Action[Any]) -> Steps[Any]:
        if not isinstance(action, SwapTable):
            return (yield action)
        there = yield ReadTable(action.storage)
        if there in {None, action.seen}:
            return (yield action)
        listed = {file.path for file in action.seen.files} if action.seen else set()
        files = tuple(file for file in action.table.files if file.path not in listed)
        rows = sum(file.rows for file in files)
        merged = replace(
            there,
            number=there.number + 1,
            token=action.table.token,
            end=there.end + rows,
            files=(*there.files, *files),
        )
        now = yield SwapTable(action.storage, there, merged)
        return action.table if now == merged else now

    _extend_differently(patch, act)


@mutation("", logs=True)
def puts_its_manifest_in_place_of_any_other(patch: Patch) -> None:
    def act(action: Action[Any]) -> Steps[Any]:
        if isinstance(action, SwapTable):
            there = yield ReadTable(action.storage)
            action = SwapTable(action.storage, there, action.table)
        return (yield action)

    _extend_differently(patch, act)


@mutation("", logs=True)
def repeats_the_last_row_of_the_commit_before(patch: Patch) -> None:
    """And counts it away, so that the sum is right."""

    def act(action: Action[Any]) -> Steps[Any]:
        if isinstance(action, WriteRows) and action.name.partition("-")[0] != "1":
            files, end = yield replace(action, first=action.first - 1, end=action.end - 1)
            return files, end + 1
        return (yield action)

    _extend_differently(patch, act)


@mutation("apache/pulsar 17516", logs=True)
def lists_a_file_that_it_did_not_read_back(patch: Patch) -> None:
    async def upload(
        self: driver._Writer,
        folder: ObjectFolder,
        made: Sequence[tuple[TableFile, Path]],
        files: list[TableFile],
    ) -> None:
        del self
        for file, local in made:
            await folder.put(file.path, driver._parts_of(local, None))
            files.append(file)

    patch.set(driver._Writer, "_upload", upload)


@mutation("decision 37", logs=True)
def takes_a_file_that_no_manifest_names_for_an_orphan(patch: Patch) -> None:
    """Its attempt may be about to list it."""

    def is_orphan_file(table: Table, path: str, now_ms: int) -> bool:
        return path not in {file.path for file in table.files} | set(table.replaced)

    patch.set(protocol, "is_orphan_file", is_orphan_file)


@mutation(
    "AutoMQ/inkless 494",
    logs=True,
    drawn=False,
    test=f"{_TESTS}::test_a_commit_without_an_answer_is_neither_lost_nor_repeated",
)
def leaves_files_of_attempts_that_failed(patch: Patch) -> None:
    patch.set(protocol, "is_orphan_file", lambda *_: False)


@mutation("", logs=True)
def counts_manifests_anew_after_a_reset(patch: Patch) -> None:
    """So that files of attempts before it look as if they were to come."""
    honest = Table.reset

    def reset(self: Table, *given: Any) -> Table:
        return replace(honest(self, *given), number=1)

    patch.set(Table, "reset", reset)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_TESTS}::test_a_table_of_another_state_of_the_log_is_neither_read_nor_extended",
)
def extends_the_table_of_another_copy(patch: Patch) -> None:
    def check_table(node: ManifestSteps, manifest: Manifest, table: Table) -> Steps[None]:
        del node, manifest, table
        return
        yield

    patch.set(protocol, "check_table", check_table)


@mutation("", logs=True, drawn=False, test=f"{_TESTS}::test_a_table_goes_with_its_log")
def leaves_the_table_of_a_log_that_is_deleted(patch: Patch) -> None:
    def delete_table(storage: str) -> Steps[None]:
        del storage
        return
        yield

    patch.set(archive, "delete_table", delete_table)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_TESTS}::test_a_table_keeps_what_the_log_truncates_until_it_is_rebuilt",
)
def deletes_files_that_readers_of_before_a_rebuild_need(patch: Patch) -> None:
    patch.set(protocol, "REPLACED_KEEP_MS", 0)
