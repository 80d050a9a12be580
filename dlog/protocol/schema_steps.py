"""The schemas of a log in the metadata store, as steps: `/schemas/<incarnation of the log>`.

A write checks in one transaction that the log is there, at the version of its manifest that was
read: a deletion changes that first, so it leaves no node of schemas behind.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dlog.log_schema.value import SCHEMAS_PATH, LogSchemas, schemas_path
from dlog.protocol.actions import Create, Delete, Exists, Get, Sync, Transact
from dlog.protocol.edits import check_living
from dlog.protocol.manifest_steps import CONFLICTS_MAX, ManifestSteps
from ledger.errors import BadVersion, MetadataDenied, NodeExists, NoSuchNode
from ledger.metastore.ops import CreateOp, Op, SetOp
from ledger.protocol.procedure import Steps

_NOTHING: Final = LogSchemas()


def read_schemas(node: ManifestSteps) -> Steps[LogSchemas]:
    """Return the schemas of the log, as of now. Raises `NoSuchLog`, `DamagedMetadata`."""
    manifest, _ = yield from node.read()
    check_living(manifest, node.log)
    return (yield from schemas_of(manifest.incarnation))


def schemas_of(incarnation: str) -> Steps[LogSchemas]:
    """Return the schemas of the log with *incarnation*, as of now. Raises `DamagedMetadata`."""
    schemas, _ = yield from _read(incarnation)
    return schemas


def _read(incarnation: str) -> Steps[tuple[LogSchemas, int | None]]:
    path = schemas_path(incarnation)
    yield from Sync(path)
    try:
        found = yield from Get(path)
    except NoSuchNode:
        return _NOTHING, None
    return LogSchemas.decode(found.value, path=path), found.version


def edit_schemas(
    node: ManifestSteps, change: Callable[[LogSchemas], LogSchemas]
) -> Steps[LogSchemas]:
    """Apply *change* until it is stored; return that. What it returns the same is not written.

    Raises what *change* raises, `NoSuchLog`, `MetadataUnavailable` (outcome unknown), and
    `BadVersion` if others were faster very many times."""
    for attempt in range(1, CONFLICTS_MAX + 1):
        manifest, version = yield from node.read()
        check_living(manifest, node.log)
        schemas, stored = yield from _read(manifest.incarnation)
        wanted = change(schemas)
        if wanted == schemas:
            return schemas
        path, value = schemas_path(manifest.incarnation), wanted.encode()
        write: Op = CreateOp(path, value) if stored is None else SetOp(path, value, stored)
        try:
            yield from _make_parent()
            guard = yield from node.guard(manifest.life, version)
            yield from Transact((*guard, write))
            return wanted
        except (BadVersion, NoSuchNode, NodeExists):  # it rolled, or another one wrote: look again
            if attempt == CONFLICTS_MAX:
                raise
    raise AssertionError("unreachable")


def _make_parent() -> Steps[None]:
    if (yield from Exists(SCHEMAS_PATH)) is None:
        with suppress(NodeExists):
            yield from Create(SCHEMAS_PATH)


def forget_schemas(incarnation: str) -> Steps[None]:
    """Delete the schemas of a log that is being deleted. Where this process may not, the node
    stays: no other log has its incarnation."""
    with suppress(NoSuchNode, MetadataDenied):
        yield from Delete(schemas_path(incarnation))
