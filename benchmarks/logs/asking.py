"""What it costs that somebody asks all bookies and the writer for their metrics, every second."""

import asyncio
import statistics
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import dlog.metrics
from benchmarks import ledger
from benchmarks.logs.bench import RECORD_BYTES, Bench
from ledger.metering.declaration import Exposed
from ledger.metering.http_server import served

_HOST: Final = "127.0.0.1"
_EVERY_S: Final = 1.0
_RATIO_AIM: Final = 0.98


async def metrics(bench: Bench, on: ledger.Bench) -> None:
    """Append as fast as it goes, by turns with and without somebody who asks."""
    exposed, told = Exposed(), list[str]()
    dlog.metrics.expose(exposed)
    ratios: list[float] = []
    with served(exposed, _HOST, 0, told.append):
        own = told[0].rpartition(" ")[2]
        addresses = [own, *on.cluster.metrics.values()]
        for turn in range(bench.sizes.turns):
            first = await _rate(on, f"turn {turn} a", addresses if turn % 2 else [])
            second = await _rate(on, f"turn {turn} b", [] if turn % 2 else addresses)
            ratios.append(first / second if turn % 2 else second / first)
    ratio = statistics.median(ratios)
    bench.at_least("appends of 100 B, metrics asked every second", ratio, "of never", _RATIO_AIM)
    bench.note("the same, least of all turns", min(ratios), "of never")
    bench.note("the same, most of all turns", max(ratios), "of never")


async def _rate(on: ledger.Bench, log: str, addresses: list[str]) -> float:
    async with _asking(addresses):
        return await ledger.aio_appends(on, log, RECORD_BYTES)


@asynccontextmanager
async def _asking(addresses: list[str]) -> AsyncIterator[None]:
    asking = asyncio.ensure_future(_ask(addresses))
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _ask(addresses: list[str]) -> None:
    while addresses:
        for address in addresses:
            page = await asyncio.to_thread(_fetch, address)
            assert b"\ndlog_" in page
        await asyncio.sleep(_EVERY_S)


def _fetch(address: str) -> bytes:
    with urllib.request.urlopen(address) as answer:
        return bytes(answer.read())
