"""A console on a cluster in this process, and a browser without a screen."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from dlog.console.pages import Console, ConsoleAccess
from dlog.console.poller import Gatherer
from dlog.testing import AsyncCluster
from ledger.client import LedgerClient
from tests.waiting import until

TOKEN = "a token that nobody knows"
READS = ConsoleAccess(token=TOKEN)


@dataclass(frozen=True, slots=True)
class Looking:
    cluster: AsyncCluster
    client: LedgerClient
    gatherer: Gatherer
    console: Console
    browser: httpx.AsyncClient

    async def page(self, path: str, **fields: str) -> str:
        answer = await self.browser.get(path, params=fields or None)
        assert answer.status_code == 200, answer.text
        return answer.text


@asynccontextmanager
async def looking(
    access: ConsoleAccess = READS,
    *,
    before: Callable[[LedgerClient], Awaitable[None]] | None = None,
    logged_in: bool = True,
) -> AsyncIterator[Looking]:
    """Yield a console that has looked at its cluster once, after *before*; its rounds are quick."""
    async with AsyncCluster() as cluster:
        client = await LedgerClient.connect(cluster.uri)
        if before is not None:
            await before(client)
        gatherer = Gatherer(client, round_s=0.02)
        console = Console(gatherer, access)
        running = asyncio.ensure_future(gatherer.run())
        try:
            async with browser_of(console) as browser:
                seen = gatherer.cluster
                if logged_in:
                    await log_in(browser, access.token)
                await until(lambda: seen.looked_at is not None and gatherer.names_known)
                yield Looking(cluster, client, gatherer, console, browser)
        finally:
            running.cancel()
            await asyncio.wait([running])
            await client.close()


async def log_in(browser: httpx.AsyncClient, token: str = TOKEN) -> None:
    answer = await browser.post("/login", data={"token": token})
    assert answer.status_code == 303


def browser_of(console: Console) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(console.app), base_url="http://localhost"
    )


def session_of(answer: httpx.Response) -> str:
    """Return what the browser was given to be known by."""
    return answer.headers["set-cookie"].split(";")[0].split("=", 1)[1]
