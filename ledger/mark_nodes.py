"""Marking ledgers that lack copies, in the metadata store: what writers, bookies and repair have in
common.

    /underreplicated/ledgers/<id & 0xff, 2 hex digits>/urL<id>   what the ledger lacks (`Mark`)
    /underreplicated/locks/urL<id>              ephemeral: who repairs it now

256 buckets: the names of 100,000 marks in one node would be more than ZooKeeper answers. Repair has
the rest (`bookie.autorecovery.marks`); it only looks at nodes, so nothing here rests on its being
there.

Invariants:
    every call that marks a ledger gives its mark a new version, also if it adds nothing: a worker
        deletes the version that it read before its work, so it looks again at what a caller saw
    a mark is written over only if none of its bucket was deleted since it was read: versions of a
        re-created mark start over, so each deletion changes the version of the bucket
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from ledger.errors import BadVersion, MetadataUnavailable, NodeExists, NoSuchNode
from ledger.ids import LedgerId
from ledger.mark import Lack, Mark
from ledger.metastore.nodes import put_node
from ledger.metastore.port import CheckOp, MetadataStore, SetOp
from ledger.nodes import parse_node
from ledger.wire import metadata_pb2 as pb

MARKS: Final = "/underreplicated/ledgers"
LOCKS: Final = "/underreplicated/locks"
BUCKETS: Final = 256
PREFIX: Final = "urL"
WRITE_TRIES_MAX: Final = 100
LOCK_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RepairLock:
    """What the lock of a ledger says: who repairs it, and which bookies get copies."""

    worker: str
    """host:pid, for people."""
    token: str = field(repr=False)
    """Random, of one worker."""
    identities: tuple[str, ...] = ()
    """All that the certificate of the worker may be known by; none without TLS."""
    targets: tuple[str, ...] = ()

    def encode(self) -> bytes:
        node = pb.RepairLockNode(
            version=LOCK_VERSION,
            worker=self.worker,
            token=self.token,
            identities=self.identities,
            targets=self.targets,
        )
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, path: str) -> Self:
        """Raises `DamagedMetadata`."""
        node = pb.RepairLockNode()
        parse_node(node, value, path, version=LOCK_VERSION)
        return cls(node.worker, node.token, tuple(node.identities), tuple(node.targets))


async def mark_ledger(
    store: MetadataStore, ledger_id: LedgerId, lacks: Iterable[Lack], *, urgent: bool = False
) -> bool:
    """Mark the ledger; return False if its mark said all that already. It gets a new version then,
    too.

    Raises `MetadataUnavailable`: then it may be marked or not, and it can be repeated."""
    wanted = tuple(sorted(lacks, key=lambda lack: lack.bookie))
    assert wanted, "a mark names a bookie"
    path = path_of_mark(ledger_id)
    new = Mark(()).merged(wanted, urgent=urgent)
    for _ in range(WRITE_TRIES_MAX):
        try:
            # First, as most are new: then it is one call.
            await store.create(path, new.encode())
        except NodeExists:
            pass
        else:
            return True
        bucket = bucket_of_mark(ledger_id)
        bucket_version = await store.exists(bucket)
        found = await read_mark(store, ledger_id)
        if found is None or bucket_version is None:
            continue  # it was deleted since
        mark, version = found
        merged = mark.merged(wanted, urgent=urgent)
        with suppress(BadVersion, NoSuchNode):  # somebody was faster
            unchanged = CheckOp(bucket, bucket_version)
            await store.multi((SetOp(path, merged.encode(), version), unchanged))
            return merged is not mark
    raise MetadataUnavailable(
        store.uri, f"mark of ledger {ledger_id}", 0.0, "others change it all the time"
    )


async def read_mark(store: MetadataStore, ledger_id: LedgerId) -> tuple[Mark, int] | None:
    """Return mark and version, None if the ledger is not marked. Raises `DamagedMetadata`."""
    path = path_of_mark(ledger_id)
    try:
        found = await store.get(path)
    except NoSuchNode:
        return None
    return Mark.decode(found.value, path=path), found.version


async def read_lock(store: MetadataStore, ledger_id: LedgerId) -> tuple[RepairLock, int] | None:
    """Return lock and version, None if nobody repairs the ledger. Raises `DamagedMetadata`."""
    path = path_of_lock(ledger_id)
    try:
        node = await store.get(path)
    except NoSuchNode:
        return None
    return RepairLock.decode(node.value, path), node.version


async def is_under_repair(store: MetadataStore, ledger_id: LedgerId) -> bool:
    """Whether the ledger is marked, or somebody repairs it. Raises `MetadataUnavailable`."""
    return (
        await store.exists(path_of_mark(ledger_id)) is not None
        or await store.exists(path_of_lock(ledger_id)) is not None
    )


async def ring(store: MetadataStore) -> None:
    """Let workers know that there are new marks; best effort, as they look by themselves."""
    with suppress(MetadataUnavailable):
        await put_node(store, MARKS, b"")


def bucket_of_mark(ledger_id: LedgerId) -> str:
    return f"{MARKS}/{ledger_id % BUCKETS:02x}"


def path_of_mark(ledger_id: LedgerId) -> str:
    return f"{bucket_of_mark(ledger_id)}/{PREFIX}{ledger_id}"


def path_of_lock(ledger_id: LedgerId) -> str:
    return f"{LOCKS}/{PREFIX}{ledger_id}"
