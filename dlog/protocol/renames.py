"""What the metadata store remembers of logs that were renamed.

    /renamed                 its version counts the renames of the namespace
    /renamed/<incarnation>   the newest name of the log that was made with it; goes with the log

A rename is one transaction, so at any time a log has exactly one name. But a reader of one name
after the other may miss a log that moves from a name not read yet to one read already: a log
counts as gone only if the count was the same before and after all these reads.
"""

from contextlib import suppress

from dlog.protocol.actions import Create, Delete, Exists, Get, Sync
from ledger.errors import MetadataDenied, NodeExists, NoSuchNode
from ledger.ledger_owner import RENAMED_PATH as RENAMED_PATH  # noqa: PLC0414 - bookies look there too
from ledger.ledger_owner import name_in, renamed_path, renamed_value
from ledger.metastore.ops import CreateOp, Op, SetOp
from ledger.protocol.procedure import Steps


def newest_name(incarnation: str) -> Steps[str | None]:
    """Return the name of a log that was renamed; None if it never was, or is deleted."""
    path = renamed_path(incarnation)
    yield from Sync(path)
    try:
        return name_in((yield from Get(path)).value, path)
    except NoSuchNode:
        return None


def remembering(incarnation: str, name: str, *, now_ms: int) -> Steps[tuple[Op, ...]]:
    """Return what else a rename's transaction does: count it, remember the new name.

    Of two at once the second fails with `NodeExists` or `BadVersion`."""
    if (yield from Exists(RENAMED_PATH)) is None:
        with suppress(NodeExists):
            yield from Create(RENAMED_PATH)
    value = renamed_value(name, now_ms=now_ms)
    path = renamed_path(incarnation)
    version = yield from Exists(path)
    newest: Op = CreateOp(path, value) if version is None else SetOp(path, value, version)
    return SetOp(RENAMED_PATH, b""), newest


def forget_rename(incarnation: str) -> Steps[None]:
    """Forget the names of a log that is deleted. Where operators alone rename, the node of a log
    that somebody else deletes stays: no other log has its incarnation."""
    with suppress(NoSuchNode, MetadataDenied):
        yield from Delete(renamed_path(incarnation))
