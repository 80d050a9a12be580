"""Ways to read a log without writing it: `Log.tail`, `tail_many`, `consumer`, `last`, `end_of`.

Each looks the log up and connects, unless it is given a client, which it leaves open. What is
returned to be read from closes what was opened for it.
"""

from collections.abc import Iterable, Mapping
from typing import Final, get_args

from dlog.aio.handle import opening
from dlog.aio.namespace_connection import connect
from dlog.aio.port import Ledgers
from dlog.aio.read.chunks import PATIENCE_S
from dlog.aio.read.consumer import Consumer, OnTrimmed
from dlog.aio.read.many import ManyReader
from dlog.aio.read.places import (
    checked_start,
    checked_stop,
    last_records,
    start_offset,
    stop_offset,
)
from dlog.aio.read.reader import Reader
from dlog.aio.read.tails import BARRIER_S, acknowledged_end
from dlog.aio.store import ManifestNode
from dlog.errors import InvalidPosition
from dlog.names import check_name
from dlog.position import BeyondEnd, Record, Start, Stop
from ledger.errors import InvalidValue
from ledger.values import Duration, Size, count_of, duration_s, size_bytes

LAST_BYTES_MAX: Final = 64 * 1024 * 1024
"""How much `Log.last` returns at most unless asked otherwise."""


@opening
async def tail(
    name: str,
    *,
    uri: str | None = None,
    start: Start = "start",
    follow: bool = True,
    stop: Stop | None = None,
    beyond_end: BeyondEnd = "raise",
    client: Ledgers | None = None,
) -> Reader:
    """Return a reader of the log, which does not disturb its writer.

    It begins at *start* and ends before *stop*; with *follow* False also at the end the
    log has now: after every record that was acknowledged before this call, as long as
    its writer lives (`end_of` says what is promised if it does not). An offset beyond the end is
    an error; with *beyond_end* "wait" the reader waits until it is reached. Raises
    `InvalidName`, `NoSuchLog`, `Trimmed`, `OffsetOutOfRange`, `LogRecreated` for a `Position` of
    another log, `InvalidPosition`, `InvalidValue`, and what connecting raises."""
    check_name(name)
    _checked_beyond_end(beyond_end)
    start = checked_start(name, start)
    stop = None if stop is None else checked_stop(name, stop)
    ledgers = client if client is not None else await connect(uri)
    try:
        node = ManifestNode(ledgers.store, name)
        first = await start_offset(ledgers, node, start, beyond_end=beyond_end)
        end = await stop_offset(ledgers, node, stop, follow=follow)
    except BaseException:
        if client is None:
            await ledgers.close()
        raise
    return Reader(
        ledgers,
        node,
        first,
        stop=end,
        incarnation=node.followed,
        patience_s=None if follow else PATIENCE_S,
        owns_ledgers=client is None,
    )


@opening
async def tail_many(
    names: Iterable[str],
    *,
    uri: str | None = None,
    start: Start | Mapping[str, Start] = "start",
    follow: bool = True,
    beyond_end: BeyondEnd = "raise",
    client: Ledgers | None = None,
) -> ManyReader:
    """Return one stream of (log, record) of several logs, up to 1000.

    Logs that have records take turns, an entry each; inside a log the order is the
    log's. *start* is one for all or one by log ("start" for those it does not name);
    `ManyReader.positions` is such a mapping. With *follow* False it ends when each log was read
    up to the end it has now. Raises as `tail`, and `TooManyLogs`."""
    if isinstance(names, str | bytes):
        raise InvalidValue("names", names, "give the names as a list; for one log there is tail")
    ledgers = client if client is not None else await connect(uri)
    try:
        return await ManyReader.open(
            ledgers,
            names,
            start=start,
            follow=follow,
            beyond_end=_checked_beyond_end(beyond_end),
            owns_ledgers=client is None,
        )
    except BaseException:
        if client is None:
            await ledgers.close()
        raise


@opening
async def consumer(
    name: str,
    log: str,
    *,
    uri: str | None = None,
    start: Start = "start",
    exclusive: bool = False,
    wait_s: Duration = 0.0,
    follow: bool = True,
    on_trimmed: OnTrimmed = "raise",
    client: Ledgers | None = None,
) -> Consumer:
    """Return a reader of *log* whose position is kept under the name *name*.

    It begins after what was committed last, or at *start* if there was no such consumer
    yet. Shared, any number of processes may read by one name; each gets all records, and
    the one that is furthest decides the position. *exclusive*: one process at a time;
    waits up to *wait_s* for another one to close. If that one's session ended although it
    still runs, it is fenced: it cannot commit any more (`ConsumerFenced`).

    Records that were trimmed before they were committed are an error (`Trimmed`), or
    with *on_trimmed* "skip" are counted in `skipped`. Raises `InvalidName`, `NoSuchLog`,
    `ConsumerBusy`, `TooManyConsumers`, `InvalidValue`, and as `tail`."""
    check_name(log)
    start = checked_start(log, start)
    patience_s = duration_s(wait_s, "wait_s")
    if on_trimmed not in get_args(OnTrimmed):
        raise InvalidValue("on_trimmed", on_trimmed, f"use {' or '.join(get_args(OnTrimmed))}")
    # The lock goes with its session, so the session goes with its handle.
    ledgers = client if client is not None else await connect(uri, alone=exclusive)
    try:
        return await Consumer.open(
            ledgers,
            name,
            log,
            start=start,
            exclusive=exclusive,
            wait_s=patience_s,
            follow=follow,
            on_trimmed=on_trimmed,
            owns_client=client is None,
        )
    except BaseException:
        if client is None:
            await ledgers.close()
        raise


async def last(
    name: str,
    count: int = 1,
    *,
    uri: str | None = None,
    bytes_max: Size = LAST_BYTES_MAX,
    client: Ledgers | None = None,
) -> list[Record]:
    """Return the last *count* records of a log, oldest first.

    Fewer if the log has fewer, and only the newest *bytes_max* bytes of values and keys
    (the last record in any case). Counts every record that was acknowledged before this
    call, as `end_of`. Raises `InvalidPosition` if *count* is not positive, and as `tail`."""
    check_name(name)
    try:
        count_of(count, "count", least=1)
    except InvalidValue as error:
        raise InvalidPosition(name, count, "ask for one record or more") from error
    most = size_bytes(bytes_max, "bytes_max")
    ledgers = client if client is not None else await connect(uri)
    try:
        node = ManifestNode(ledgers.store, name)
        return await last_records(ledgers, node, count, bytes_max=most)
    finally:
        if client is None:
            await ledgers.close()


async def end_of(
    name: str,
    *,
    uri: str | None = None,
    timeout_s: Duration = BARRIER_S,
    client: Ledgers | None = None,
) -> int:
    """Return the offset after every record of *name* acknowledged before this call.

    The barrier of `Reader.barrier` without a reader; raises the same, and `InvalidName`."""
    check_name(name)
    patience_s = duration_s(timeout_s, "timeout_s")
    ledgers = client if client is not None else await connect(uri)
    try:
        node = ManifestNode(ledgers.store, name)
        return await acknowledged_end(ledgers, node, timeout_s=patience_s)
    finally:
        if client is None:
            await ledgers.close()


def _checked_beyond_end(beyond_end: BeyondEnd) -> BeyondEnd:
    if beyond_end not in get_args(BeyondEnd):
        raise InvalidValue("beyond_end", beyond_end, f"use {' or '.join(get_args(BeyondEnd))}")
    return beyond_end
