"""Asks over and over where the log ends, or reads all of it, and tells what it was told, with the
times.

A read goes up to a barrier, or as far as the log goes now; the latter is not *certain* if nobody
could say soon where that is. Told on standard output as JSON lines.

Call: python -m tests.integration.chaos.observer URI LIFE
"""

import asyncio
import sys
import time
from random import Random
from typing import Final

from dlog.aio import Log
from dlog.aio.read.tails import END_GRACE_S
from ledger import LedgerClient
from ledger.errors import LogError
from tests.integration.chaos.writer import LOG, say

ENDS: Final = 0.8
"""How probably it asks for the end only."""
PAUSES_S: Final = (0.0, 0.02, 0.2)
READ_S: Final = 30.0


async def ask_for_the_end(client: LedgerClient) -> None:
    asked = time.monotonic()
    end = await Log.end_of(LOG, client=client)
    say("end", asked=asked, end=end)


async def read_all(client: LedgerClient, *, by_barrier: bool) -> None:
    asked = time.monotonic()
    async with (
        asyncio.timeout(READ_S),
        await Log.tail(LOG, follow=by_barrier, client=client) as reader,
    ):
        certain = by_barrier or time.monotonic() - asked < END_GRACE_S
        if by_barrier:
            records = reader.read_until(await reader.barrier())
            values = [record.value.decode() async for record in records]
        else:
            values = [record.value.decode() async for record in reader]
    say("read", asked=asked, values=values, certain=certain)


async def main(uri: str, life: str) -> None:
    random = Random(life)
    client = await LedgerClient.connect(uri)
    try:
        while True:
            await asyncio.sleep(random.choice(PAUSES_S))
            try:
                if random.random() < ENDS:
                    await ask_for_the_end(client)
                else:
                    await read_all(client, by_barrier=random.random() < 0.5)
            except LogError as error:
                if not error.retryable:
                    say("broken", what=f"observer: {type(error).__name__}: {error}")
                say("trouble", error=f"{type(error).__name__}: {error}")
            except TimeoutError:
                say("trouble", error=f"not read within {READ_S} s")
    finally:
        await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
