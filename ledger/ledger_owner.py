"""Which log a ledger belongs to, as far as that is told on this floor. Pure.

A ledger of a log carries in its metadata the name that the log had when the ledger was made, and
the log's incarnation. A log that was renamed since has its newest name at `/renamed/<incarnation>`.

Metadata are changed by whoever writes ledgers. What decides rights is the ledger's owner node,
`/owners/<ledger id>`: it says the same, is made in the transaction that makes the ledger, and with
roles on ZooKeeper no client changes or deletes it.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ledger.errors import DamagedMetadata
from ledger.ids import LedgerId
from ledger.nodes import parse_node
from ledger.wire import metadata_pb2 as pb

STAMP_LOG: Final = "dlog.sync.log"
"""A stored key, which every ledger of a log has: it stays, whatever modules are called."""
STAMP_INCARNATION: Final = "dlog.incarnation"
RENAMED_PATH: Final = "/renamed"
"""Its version counts the renames of the namespace."""
RENAMED_VERSION: Final = 1
OWNERS_PATH: Final = "/owners"
"""Its version says whether owner nodes stay when their ledgers are deleted: 0, they do not."""
OWNER_VERSION: Final = 1


class LedgerOwner(NamedTuple):
    log: str
    """The name that it had then."""
    incarnation: str


def belonging(custom: Mapping[str, bytes]) -> LedgerOwner | None:
    """Return what a ledger's custom metadata say; None: it belongs to no log."""
    try:
        found = LedgerOwner(custom[STAMP_LOG].decode(), custom[STAMP_INCARNATION].decode())
    except (KeyError, UnicodeDecodeError):
        return None
    return found if all(found) and "/" not in found.incarnation else None


def renamed_path(incarnation: str) -> str:
    return f"{RENAMED_PATH}/{incarnation}"


def renamed_value(name: str, *, now_ms: int) -> bytes:
    node = pb.RenamedNode(version=RENAMED_VERSION, name=name, renamed_ms=now_ms)
    return node.SerializeToString(deterministic=True)


def name_in(value: bytes, path: str) -> str:
    """Return the newest name of a renamed log. Raises `DamagedMetadata`."""
    node = pb.RenamedNode()
    parse_node(node, value, path, version=RENAMED_VERSION)
    return node.name


def owner_path(ledger_id: LedgerId) -> str:
    return f"{OWNERS_PATH}/{ledger_id}"


def owner_value(found: LedgerOwner | None) -> bytes:
    """Return the value of an owner node; None: the ledger belongs to no log."""
    log, incarnation = found or ("", "")
    node = pb.OwnerNode(version=OWNER_VERSION, log=log, incarnation=incarnation)
    return node.SerializeToString(deterministic=True)


def owner_in(value: bytes, path: str) -> LedgerOwner | None:
    """Return what an owner node says. Raises `DamagedMetadata`."""
    node = pb.OwnerNode()
    parse_node(node, value, path, version=OWNER_VERSION)
    if not node.log and not node.incarnation:
        return None
    if not node.log or not node.incarnation or "/" in node.incarnation:
        raise DamagedMetadata(path, f"log {node.log!r}, incarnation {node.incarnation!r}")
    return LedgerOwner(node.log, node.incarnation)
