"""Which log a ledger belongs to, as far as that is told on this floor. Pure.

A ledger of a log carries in its metadata the name that the log had when the ledger was made, and
the log's incarnation. A log that was renamed since has its newest name at `/renamed/<incarnation>`.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ledger.nodes import parse_node
from ledger.wire import metadata_pb2 as pb

STAMP_LOG: Final = "dlog.sync.log"
STAMP_INCARNATION: Final = "dlog.incarnation"
RENAMED_PATH: Final = "/renamed"
"""Its version counts the renames of the namespace."""
RENAMED_VERSION: Final = 1


class Belonging(NamedTuple):
    log: str
    """The name that it had then."""
    incarnation: str


def belonging(custom: Mapping[str, bytes]) -> Belonging | None:
    """Return what a ledger's custom metadata say; None: it belongs to no log."""
    try:
        found = Belonging(custom[STAMP_LOG].decode(), custom[STAMP_INCARNATION].decode())
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
