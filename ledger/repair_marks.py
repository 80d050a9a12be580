"""Marks of ledgers that lack copies, in the metadata store: what writers, readers, bookies and
repair have in common.

    /underreplicated/ledgers/<id & 0xff, 2 hex digits>/urL<id>   an `UnderreplicatedLedger`
    /underreplicated/locks/urL<id>              ephemeral: who repairs it now

256 buckets: the names of 100,000 marks in one node would be more than ZooKeeper answers. Repair has
the rest (`bookie.autorecovery.marks`); it only looks at nodes, so nothing here rests on its being
there.

Invariants:
    every call that marks a ledger gives its mark a new version, also if it adds nothing: a worker
        deletes the version that it read before its work, so it looks again at what a caller saw
    a mark is written over only if none of its bucket was deleted since it was read: versions of a
        re-created mark start over, so each deletion changes the version of the bucket

What readers find missing or damaged, and recoveries doubt, becomes such marks too (`RepairHints`),
which the workers of repair verify. That is best effort, beside the reads and never in their way:
what cannot be marked now is found again by the next reader, or by the auditor's checks. Bounded:
one mark is written at a time, a replica is reported once in a while, at most `WAITING_MAX` wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self, assert_never

from ledger.errors import BadVersion, LogError, MetadataUnavailable, NodeExists, NoSuchNode
from ledger.ids import BookieId, LedgerId
from ledger.log_events import get_logger, now_ms
from ledger.mark import MissingReplica, Reason, UnderreplicatedLedger
from ledger.metastore.port import CheckOp, MetadataStore, SetOp, put_node
from ledger.nodes import parse_node
from ledger.protocol.answers import Fault, RepairHint
from ledger.wire import metadata_pb2 as pb

MARKS: Final = "/underreplicated/ledgers"
LOCKS: Final = "/underreplicated/locks"
BUCKETS: Final = 256
PREFIX: Final = "urL"
WRITE_TRIES_MAX: Final = 100
LOCK_VERSION: Final = 1
AGAIN_MS: Final = 600_000
"""After how long the share of a bookie in a ledger is reported again."""
REMEMBERED_MAX: Final = 1000
WAITING_MAX: Final = 100
CLOSE_S: Final = 1.0
_log = get_logger(__name__)


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
    store: MetadataStore,
    ledger_id: LedgerId,
    missing: Iterable[MissingReplica],
    *,
    urgent: bool = False,
) -> bool:
    """Mark the ledger; return False if its mark said all that already. It gets a new version then,
    too.

    Raises `MetadataUnavailable`: then it may be marked or not, and it can be repeated."""
    wanted = tuple(sorted(missing, key=lambda replica: replica.bookie))
    assert wanted, "a mark names a bookie"
    path = path_of_mark(ledger_id)
    new = UnderreplicatedLedger(()).merged(wanted, urgent=urgent)
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


async def read_mark(
    store: MetadataStore, ledger_id: LedgerId
) -> tuple[UnderreplicatedLedger, int] | None:
    """Return mark and version, None if the ledger is not marked. Raises `DamagedMetadata`."""
    path = path_of_mark(ledger_id)
    try:
        found = await store.get(path)
    except NoSuchNode:
        return None
    return UnderreplicatedLedger.decode(found.value, path=path), found.version


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


async def notify_workers(store: MetadataStore) -> None:
    """Let workers know that there are new marks; best effort, as they look by themselves."""
    with suppress(MetadataUnavailable):
        await put_node(store, MARKS, b"")


def bucket_of_mark(ledger_id: LedgerId) -> str:
    return f"{MARKS}/{ledger_id % BUCKETS:02x}"


def path_of_mark(ledger_id: LedgerId) -> str:
    return f"{bucket_of_mark(ledger_id)}/{PREFIX}{ledger_id}"


def path_of_lock(ledger_id: LedgerId) -> str:
    return f"{LOCKS}/{PREFIX}{ledger_id}"


class RepairHints:
    """Of one client; `close` ends it."""

    def __init__(self, store: MetadataStore, *, wall_clock_ms: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._now_ms = wall_clock_ms
        self._reported: dict[tuple[LedgerId, BookieId], int] = {}
        """When, the oldest first."""
        self._waiting: deque[tuple[LedgerId, tuple[MissingReplica, ...]]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._dropping = False
        """Whether the last one found no room."""
        self._closed = False

    def heard(self, ledger_id: LedgerId, hint: RepairHint) -> None:
        """Record a replica that is missing or damaged, of an entry that is settled."""
        self._suspect(ledger_id, (hint.bookie,), _reason_of(hint.fault))

    def doubted(self, ledger_id: LedgerId, bookies: Iterable[BookieId]) -> None:
        """Record members that may lack entries; a worker asks them what they hold."""
        self._suspect(ledger_id, bookies, Reason.MISSING)

    def _suspect(self, ledger_id: LedgerId, bookies: Iterable[BookieId], reason: Reason) -> None:
        at_ms = self._now_ms()
        news = tuple(each for each in bookies if not self._is_known(ledger_id, each, at_ms))
        if self._closed or not news:
            return
        if len(self._waiting) >= WAITING_MAX:
            if not self._dropping:  # once, until there is room again
                _log.warning("suspicions_dropped", first_ledger_id=ledger_id, bookies=news)
            self._dropping = True
            return
        self._dropping = False
        for bookie in news:
            self._reported.pop((ledger_id, bookie), None)
            if len(self._reported) >= REMEMBERED_MAX:
                del self._reported[next(iter(self._reported))]
            self._reported[ledger_id, bookie] = at_ms
        missing = tuple(MissingReplica(bookie, reason, at_ms) for bookie in news)
        self._waiting.append((ledger_id, missing))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    def _is_known(self, ledger_id: LedgerId, bookie: BookieId, at_ms: int) -> bool:
        return at_ms < self._reported.get((ledger_id, bookie), at_ms - AGAIN_MS) + AGAIN_MS

    async def close(self) -> None:
        """Write what waits, within a moment, and nothing more. Idempotent."""
        self._closed = True
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=CLOSE_S)
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while self._waiting:  # what is heard while it rings counts too
                while self._waiting:
                    ledger_id, missing = self._waiting.popleft()
                    if await mark_ledger(self._store, ledger_id, missing):
                        bookies = [replica.bookie for replica in missing]
                        _log.info("replicas_suspected", ledger_id=ledger_id, bookies=bookies)
                await notify_workers(self._store)
        except LogError as error:
            self._waiting.clear()
            self._reported.clear()
            _log.warning("suspicions_not_marked", reason=str(error))
        finally:
            self._writing = None


def _reason_of(fault: Fault) -> Reason:
    match fault:
        case Fault.MISSING:
            return Reason.MISSING
        case Fault.DAMAGED:
            return Reason.DAMAGED
        case _:
            assert_never(fault)
