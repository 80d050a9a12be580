"""How fast workers may go, as an operator has set it while they run; and how fast they do go.

    /underreplicated/throttle           bytes a second and ledgers at a time, for each worker
    /underreplicated/workers/<token>    ephemeral: what a worker does, written while that changes

A worker that cannot read the throttle goes on as before. What workers say of themselves is for
people; nothing is decided by it.
"""

import asyncio
import secrets
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from bookie.autorecovery.marks import FORMAT_VERSION
from bookie.autorecovery.protocol.estimate import Estimate
from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.worker import Worker
from leader.wait import first_of
from ledger.clock import now_ms
from ledger.errors import DamagedMetadata, LogError, NodeExists, NoSuchNode
from ledger.log_events import get_logger
from ledger.metastore.nodes import children_of, put_node
from ledger.metastore.port import MetadataStore
from ledger.nodes import parse_node
from ledger.process import this_process
from ledger.wire import metadata_pb2 as pb

THROTTLE: Final = "/underreplicated/throttle"
WORKERS: Final = "/underreplicated/workers"
LOOK_S: Final = 60.0
"""How often the throttle is read though nothing has changed."""
REPORT_S: Final = 5.0
REPORT_S_MAX: Final = 60.0
"""How old a report becomes though nothing has changed: its node may have gone with a session."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairThrottle:
    """What an operator has set for all workers; None: each goes as it was started."""

    bytes_per_s: float | None = None
    """Copied by each worker; 0: no limit."""
    ledgers_max: int | None = None
    """Repaired at a time by each worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    worker: str
    """host:pid"""
    at_ms: int
    ledgers: int
    """Repaired since it was started."""
    bytes: int
    """Copied since it was started."""
    bytes_per_s: float
    """Copied lately."""
    ledgers_per_s: float
    """Repaired lately."""
    bytes_per_s_max: float
    """Its throttle; 0: no limit."""
    ledgers_max: int


async def read_throttle(store: MetadataStore) -> RepairThrottle:
    """Raises `MetadataUnavailable`, `DamagedMetadata`."""
    try:
        value = (await store.get(THROTTLE)).value
    except NoSuchNode:
        return RepairThrottle()
    node = pb.RepairThrottleNode()
    parse_node(node, value, THROTTLE, version=FORMAT_VERSION)
    return RepairThrottle(
        bytes_per_s=node.bytes_per_s if node.HasField("bytes_per_s") else None,
        ledgers_max=node.ledgers if node.HasField("ledgers") else None,
    )


async def set_throttle(store: MetadataStore, throttle: RepairThrottle) -> None:
    """Let *throttle* hold for all workers, within seconds. Raises `MetadataUnavailable`."""
    if throttle == RepairThrottle():
        with suppress(NoSuchNode):
            await store.delete(THROTTLE)
        return
    node = pb.RepairThrottleNode(
        version=FORMAT_VERSION, bytes_per_s=throttle.bytes_per_s, ledgers=throttle.ledgers_max
    )
    await put_node(store, THROTTLE, node.SerializeToString(deterministic=True))


async def keep_throttled(store: MetadataStore, worker: Worker) -> None:
    """Let *worker* go as fast as an operator has set, from each change on, until cancelled."""
    with closing(store.watch(THROTTLE)) as changing:
        while True:
            try:
                found = await read_throttle(store)
                worker.throttle(found.bytes_per_s, found.ledgers_max)
            except LogError as error:
                _log.warning("throttle_not_read", reason=str(error))
            await first_of(changing.changed(), timeout_s=LOOK_S)


async def keep_reporting(
    store: MetadataStore, worker: Worker, *, every_s: float = REPORT_S
) -> None:
    """Write down what *worker* does, as long as that changes, until cancelled."""
    path = f"{WORKERS}/{secrets.token_hex(8)}"
    loop = asyncio.get_running_loop()
    bytes_done, ledgers_done = Estimate(), Estimate()
    written, written_at = b"", float("-inf")
    while True:
        ledgers = worker.outcomes[RepairOutcome.DONE]
        bytes_done.note(worker.pace.bytes, loop.time())
        ledgers_done.note(ledgers, loop.time())
        node = pb.RepairWorkerNode(
            version=FORMAT_VERSION,
            worker=this_process(),
            ledgers=ledgers,
            bytes=worker.pace.bytes,
            bytes_per_s=bytes_done.per_s,
            ledgers_per_s=ledgers_done.per_s,
            bytes_per_s_max=worker.pace.bytes_per_s,
            ledgers_max=worker.ledgers_max,
        )
        says = node.SerializeToString(deterministic=True)
        if says != written or loop.time() >= written_at + REPORT_S_MAX:
            node.at_ms = now_ms()
            try:
                await _write(store, path, node.SerializeToString(deterministic=True))
                written, written_at = says, loop.time()
            except LogError as error:
                _log.debug("work_not_reported", reason=str(error))
        await asyncio.sleep(every_s)


async def _write(store: MetadataStore, path: str, value: bytes) -> None:
    with suppress(NoSuchNode):
        await store.set(path, value)
        return
    with suppress(NodeExists):  # a reply was lost
        await store.create(path, value, ephemeral=True)


async def reports(store: MetadataStore) -> list[WorkerReport]:
    """Return what the workers that run say of themselves, by name.

    One that cannot be read is left out. Raises `MetadataUnavailable`."""
    found: list[WorkerReport] = []
    for name in await children_of(store, WORKERS):
        node, path = pb.RepairWorkerNode(), f"{WORKERS}/{name}"
        try:
            parse_node(node, (await store.get(path)).value, path, version=FORMAT_VERSION)
        except (NoSuchNode, DamagedMetadata):
            continue
        found.append(
            WorkerReport(
                worker=node.worker,
                at_ms=node.at_ms,
                ledgers=node.ledgers,
                bytes=node.bytes,
                bytes_per_s=node.bytes_per_s,
                ledgers_per_s=node.ledgers_per_s,
                bytes_per_s_max=node.bytes_per_s_max,
                ledgers_max=node.ledgers_max,
            )
        )
    return sorted(found, key=lambda each: each.worker)
