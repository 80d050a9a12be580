"""What running replicas report of themselves in the metadata store, and requests of snapshots.

    /replicas/<incarnation of the log>/<id>            ephemeral, written by the replica
    /replicas/<incarnation of the log>/<id>.snapshot   ephemeral, made by the client that requests a
                                                       snapshot; the replica writes the outcome

The incarnation identifies the log, so a rename moves nothing. A node goes with the session of its
maker, so a killed replica is listed until its session has expired, and holds nothing after that.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self, cast, get_args

from dlog.errors import encodable
from dlog.protocol.snapshot import SnapshotPhase
from dlog.wire import replica_pb2 as pb
from ledger.errors import DamagedMetadata
from ledger.nodes import parse_node

FORMAT_VERSION: Final = 1
REPLICAS_PATH: Final = "/replicas"
REQUEST_SUFFIX: Final = ".snapshot"
ERROR_CHARACTERS_MAX: Final = 1000

ReplicaRole = Literal["standby", "leader", "stopped"]


def replicas_path(incarnation: str) -> str:
    """Return the parent of the replicas of the log with *incarnation*."""
    return f"{REPLICAS_PATH}/{incarnation}"


def replica_path(incarnation: str, replica: str) -> str:
    return f"{replicas_path(incarnation)}/{replica}"


def request_path(incarnation: str, replica: str) -> str:
    """Return where the replica with id *replica* is asked for a snapshot."""
    return f"{replica_path(incarnation, replica)}{REQUEST_SUFFIX}"


def replica_ids(children: Iterable[str]) -> list[str]:
    """Return those of *children* that are replicas."""
    return [name for name in children if not name.endswith(REQUEST_SUFFIX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    log: str
    """Its name, as the replica knows it."""
    candidate: str
    address: str
    """Where clients reach the application; empty: not reported."""
    process: str
    """host:pid."""
    role: ReplicaRole
    epoch: int
    """Of the log, while it leads; else 0."""
    applied: int
    """Every record below this offset is in its state."""
    version: int
    """Of the application."""
    since_ms: int
    snapshots: str
    """URI of its store of snapshots; empty: it has none, and needs the whole log."""
    newest_snapshot: int
    """Offset of the newest snapshot that it knows; 0: none."""
    phase: SnapshotPhase | None = None
    """Of the snapshot under way; None: there is none."""
    done_bytes: int = 0
    total_bytes: int | None = None
    error: str = ""
    """What stopped it."""
    updated_ms: int = 0

    def encode(self) -> bytes:
        node = pb.ReplicaNode(
            version=FORMAT_VERSION,
            log=self.log,
            candidate=self.candidate,
            address=self.address,
            process=self.process,
            role=self.role,
            epoch=self.epoch,
            applied=self.applied,
            application_version=self.version,
            since_ms=self.since_ms,
            updated_ms=self.updated_ms,
            snapshots=encodable(self.snapshots),
            newest_snapshot=self.newest_snapshot,
            phase=self.phase or "",
            done_bytes=self.done_bytes,
            total_bytes=self.total_bytes,
            error=encodable(self.error[:ERROR_CHARACTERS_MAX]),
        )
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, *, path: str) -> Self:
        """Raises `DamagedMetadata`."""
        node = pb.ReplicaNode()
        parse_node(node, value, path, version=FORMAT_VERSION)
        if node.role not in get_args(ReplicaRole):
            raise DamagedMetadata(path, f"there is no role {node.role!r}")
        if node.phase not in ("", *get_args(SnapshotPhase)):
            raise DamagedMetadata(path, f"there is no phase {node.phase!r}")
        return cls(
            log=node.log,
            candidate=node.candidate,
            address=node.address,
            process=node.process,
            role=cast("ReplicaRole", node.role),
            epoch=node.epoch,
            applied=node.applied,
            version=node.application_version,
            since_ms=node.since_ms,
            updated_ms=node.updated_ms,
            snapshots=node.snapshots,
            newest_snapshot=node.newest_snapshot,
            phase=cast("SnapshotPhase", node.phase) if node.phase else None,
            done_bytes=node.done_bytes,
            total_bytes=node.total_bytes if node.HasField("total_bytes") else None,
            error=node.error,
        )

    @property
    def needed_offset(self) -> int | None:
        """The first offset that must stay in the log for it; None: it needs none of it.

        A replica with a store can continue from a snapshot, and the store is a consumer. One that
        stopped does not continue: a new one begins in its place."""
        return None if self.snapshots or self.role == "stopped" else self.applied


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    asked_by: str
    asked_ms: int
    begun: bool = False
    offset: int | None = None
    """Of the snapshot that was written; None: there is none yet."""
    error: str = ""
    """Why there is none."""

    @property
    def is_done(self) -> bool:
        return self.offset is not None or bool(self.error)

    def encode(self) -> bytes:
        return pb.SnapshotRequestNode(
            version=FORMAT_VERSION,
            asked_by=self.asked_by,
            asked_ms=self.asked_ms,
            begun=self.begun,
            offset=self.offset,
            error=encodable(self.error[:ERROR_CHARACTERS_MAX]),
        ).SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, *, path: str) -> Self:
        """Raises `DamagedMetadata`."""
        node = pb.SnapshotRequestNode()
        parse_node(node, value, path, version=FORMAT_VERSION)
        return cls(
            asked_by=node.asked_by,
            asked_ms=node.asked_ms,
            begun=node.begun,
            offset=node.offset if node.HasField("offset") else None,
            error=node.error,
        )
