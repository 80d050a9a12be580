"""What compaction does to adds: an entry log of which half is dead is rewritten meanwhile."""

import asyncio
from collections.abc import Iterator
from typing import Final

from benchmarks.bookie.behind import ADD_NAME, p99_of_adds
from benchmarks.bookie.bench import Bench, one_bookie
from benchmarks.bookie.load import RUN_BYTES, Pump
from benchmarks.ledger import PATIENT
from benchmarks.runs import runs_of
from ledger import LedgerClient, LedgerId, Quorum
from ledger.requests import AddRun
from ledger.transport.operator import BookieOperator

_ENTRY_BYTES: Final = 64_000
_LEDGERS: Final = 5


async def compaction(bench: Bench) -> None:
    """Fill a log with two ledgers in turn, delete one, compact while adds are measured."""
    with bench.place() as place:
        async with one_bookie(place) as bookie:
            client = await LedgerClient.connect(bookie.cluster.uri, PATIENT)
            try:
                await client.bookies.wait_for(1, 60)
                # Collection removes what is not in the metadata store, so all are made there.
                kept, dead, *added = [await _ledger(client) for _ in range(_LEDGERS)]
                runs = _in_turn(kept, dead, bench.sizes.catch_up_bytes)
                await Pump(bookie.transport).all(runs, payload_bytes=_ENTRY_BYTES)
                await bookie.cluster.restart_bookie(0)
                before = await p99_of_adds(bench, bookie, added[0])
                await bookie.cluster.restart_bookie(0)  # the newest log is never compacted
                await client.delete(dead)
                (registered,) = client.bookies.available()
            finally:
                await client.close()
            async with BookieOperator(registered.operator_address) as operator:
                await operator.collect()
                compacting = asyncio.ensure_future(operator.compact(major=True))
                beside = await p99_of_adds(bench, bookie, added[1])
                run = await compacting
            after = await p99_of_adds(bench, bookie, added[2])
    assert run.bytes_moved, f"nothing was compacted: {run.failure or run.suspended}"
    alone = (before + after) / 2
    bench.note("compaction moved", run.bytes_moved / 1e6, "MB")
    bench.note("compaction took", run.took_s, "s")
    bench.note(f"{ADD_NAME}, before and after compaction p99", alone * 1e3, "ms")
    bench.at_most(f"{ADD_NAME}, beside compaction p99", beside * 1e3, "ms", 2 * alone * 1e3)


async def _ledger(client: LedgerClient) -> LedgerId:
    writer = await client.create(Quorum(1, 1, 1))
    await writer.abandon()
    return writer.ledger_id


def _in_turn(one: int, other: int, total_bytes: int) -> Iterator[AddRun]:
    count = total_bytes // (2 * _ENTRY_BYTES)
    runs = [runs_of(ledger, _ENTRY_BYTES, count, run_bytes=RUN_BYTES) for ledger in (one, other)]
    for pair in zip(*runs, strict=True):
        yield from pair
