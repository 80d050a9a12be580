"""The content of a node of the metadata store, of whichever kind. Pure."""

from typing import Protocol

from google.protobuf.message import DecodeError

from ledger.errors import DamagedMetadata


class VersionedNode(Protocol):
    """A protobuf message that begins with the version of its format."""

    version: int

    def ParseFromString(self, serialized: bytes, /) -> int: ...  # noqa: N802


def parse_node(node: VersionedNode, value: bytes, path: str, *, version: int) -> None:
    """Read *value*, found at *path*, into *node*.

    Raises `DamagedMetadata`, also if it is of another format than *version*."""
    try:
        node.ParseFromString(value)
    except DecodeError as error:
        raise DamagedMetadata(path, str(error)) from error
    if node.version != version:
        raise DamagedMetadata(path, f"format version {node.version}, this program knows {version}")
