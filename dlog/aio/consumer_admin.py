"""Named consumers as a whole: list, describe, reset, delete; the slowest one, for retention.

As in `dlog.namespace`, each function connects for itself unless it is given a *client*.
"""

from dataclasses import dataclass

from dlog.aio.connecting import connected
from dlog.aio.port import Ledgers
from dlog.aio.read.places import start_offset
from dlog.aio.read.tails import LogTail, tail_of
from dlog.aio.store.consumer_nodes import ConsumerNode, read_consumers
from dlog.aio.store.manifests import ManifestNode
from dlog.errors import NoSuchLog
from dlog.manifest import Manifest
from dlog.names import check_name
from dlog.position import Start
from dlog.protocol.consuming import ConsumerState
from ledger.clock import now_ms

__all__ = [
    "ConsumerInfo",
    "consumer_info",
    "delete_consumer",
    "list_consumers",
    "reset_consumer",
    "slowest_consumer",
]


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    log: str
    name: str
    position: int
    """Every record below this offset was processed."""
    epoch: int
    exclusive: bool
    """Opened last by one process for itself alone."""
    owner: str
    """Who opened or reset it last, as host:pid."""
    in_use_by: str | None
    """Who has it open exclusively now; None if nobody, or if it is shared."""
    updated_ms: int
    """When it changed last, by the clock of who changed it."""
    lag: int
    """Readable records that were not committed yet."""
    trimmed: int
    """Records that were not committed and cannot be read any more."""


async def list_consumers(
    log: str, *, uri: str | None = None, client: Ledgers | None = None
) -> list[ConsumerInfo]:
    """Return the consumers of *log*, by name. Raises `InvalidName`, `NoSuchLog`."""
    check_name(log)
    async with connected(uri, client) as ledgers:
        manifest = await _manifest(ledgers, log)
        tail = await tail_of(ledgers, log)
        found = await read_consumers(ledgers.store, log, manifest)
        return [
            _info(log, name, state, await ConsumerNode(ledgers.store, log, name).owner(), tail)
            for name, state in found
        ]


async def consumer_info(
    name: str, log: str, *, uri: str | None = None, client: Ledgers | None = None
) -> ConsumerInfo:
    """Return what is known of a consumer. Raises `InvalidName`, `NoSuchLog`, `NoSuchConsumer`."""
    async with connected(uri, client) as ledgers:
        node = ConsumerNode(ledgers.store, log, name)
        tail = await tail_of(ledgers, log)
        state, _ = await node.read()
        return _info(log, name, state, await node.owner(), tail)


async def reset_consumer(
    name: str,
    log: str,
    to: Start,
    *,
    owner: str = "",
    uri: str | None = None,
    client: Ledgers | None = None,
) -> int:
    """Let a consumer begin again at *to*; return that offset.

    Processes that have it open cannot commit any more (`ConsumerFenced`) and open it again.
    Raises `InvalidName`, `NoSuchLog`, `NoSuchConsumer`, `Trimmed`,
    `OffsetOutOfRange`, `LogRecreated`, `InvalidPosition`."""
    async with connected(uri, client) as ledgers:
        node = ConsumerNode(ledgers.store, log, name)
        known = await node.read_to_edit()  # first: the offset is one of the log that it is of
        offset = await start_offset(
            ledgers, ManifestNode(ledgers.store, log), to, beyond_end="raise"
        )
        now = now_ms()
        state, _ = await node.edit(
            lambda state: state.was_reset(offset, owner=owner or state.owner, now_ms=now), known
        )
        return state.position


async def delete_consumer(
    name: str, log: str, *, uri: str | None = None, client: Ledgers | None = None
) -> None:
    """Forget a consumer. Who has it open shared learns it at the next commit.

    Raises `InvalidName`, `NoSuchConsumer`, `ConsumerBusy` while it is used exclusively."""
    async with connected(uri, client) as ledgers:
        await ConsumerNode(ledgers.store, log, name).delete()


async def slowest_consumer(
    log: str, *, uri: str | None = None, client: Ledgers | None = None
) -> tuple[str, int] | None:
    """Return name and position of the consumer that is furthest behind; None without any.

    What lies below that position was processed by every consumer there is: a retention
    that must not outrun them trims no further. Costs a read of the metadata store for
    each consumer. Raises `InvalidName`, `NoSuchLog`."""
    check_name(log)
    async with connected(uri, client) as ledgers:
        manifest = await _manifest(ledgers, log)
        found = await read_consumers(ledgers.store, log, manifest)
    positions = [(state.position, name) for name, state in found]
    if not positions:
        return None
    position, name = min(positions)
    return name, position


async def _manifest(ledgers: Ledgers, log: str) -> Manifest:
    manifest, _ = await ManifestNode(ledgers.store, log).read()
    if manifest.dropped:
        raise NoSuchLog(log, "it is being deleted")
    return manifest


def _info(
    log: str, name: str, state: ConsumerState, in_use_by: str | None, tail: LogTail
) -> ConsumerInfo:
    return ConsumerInfo(
        log=log,
        name=name,
        position=state.position,
        epoch=state.epoch,
        exclusive=state.exclusive,
        owner=state.owner,
        in_use_by=in_use_by,
        updated_ms=state.updated_ms,
        lag=max(0, tail.next_offset - max(state.position, tail.first_offset)),
        trimmed=max(0, tail.first_offset - state.position),
    )
