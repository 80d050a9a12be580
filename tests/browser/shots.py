"""Draws the pages of the console for the documents: `make screenshots`, needs a Chromium.

Call: python -m tests.browser.shots DIRECTORY
"""

import asyncio
import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from playwright.async_api import Page

from dlog.aio import Log
from dlog.settings import LogSettings
from tests.browser.chromium import Watched, watched

SHOWN_S: Final = 25.0
CITIES: Final = ("ATL", "BOS", "CLT", "DFW", "EWR", "IAH", "JFK", "LGA", "MCO", "ORD")


async def shots(into: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with watched(Path(directory)) as at:
            working = asyncio.ensure_future(_work(at))
            try:
                await _wait(SHOWN_S)
                await _shot(at, into / "console-cluster-light.png", "", "light")
                await _shot(at, into / "console-log-dark.png", "log?name=flights", "dark")
                path = "records?log=flights&at=40&as=json"
                await _shot(at, into / "console-records-light.png", path, "light")
                at.cluster.kill_bookie(2)
                await _wait(6.0)
                await _shot(at, into / "console-trouble-dark.png", "", "dark")
                await _shot(at, into / "console-phone.png", "", "light", phone=True)
            finally:
                working.cancel()
                with suppress(asyncio.CancelledError):
                    await working


async def _wait(seconds: float) -> None:
    """Let the curves grow: what is drawn is time itself."""
    await asyncio.sleep(seconds)


async def _shot(at: Watched, file: Path, path: str, scheme: str, *, phone: bool = False) -> None:
    context = await at.browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": 390, "height": 760} if phone else {"width": 1100, "height": 720},
        device_scale_factor=1,
    )
    page: Page = await at.log_in(context)
    await page.goto(at.address + path)
    await page.locator("#alive").get_by_text("live").or_(page.locator("#rows tr").first).wait_for()
    await page.screenshot(path=file)
    await context.close()


async def _work(at: Watched) -> None:
    """Write a log in waves, and let it be taken over now and then; a consumer lags behind."""
    settings = LogSettings(roll_records=4_000)
    for name in ("orders", "payments/eu", "payments/us", "sessions"):
        other = await Log.open(name, client=at.client)
        await other.append_many([b"a record"] * 200)
        await other.close()
    turn = 0
    while True:
        log = await Log.open("flights", client=at.client, settings=settings if not turn else None)
        consumer = await Log.consumer("billing", "flights", client=at.client)
        for wave in range(60):
            rows = [
                json.dumps(
                    {"flight": turn * 1000 + at_, "from": CITIES[at_ % 10], "delay_min": wave % 7}
                ).encode()
                for at_ in range(50 + 40 * (wave % 9))
            ]
            await log.append_many(rows)
            for _ in range(len(rows) * (3 + wave % 5) // 8):
                await anext(consumer)
            await consumer.commit()
            await asyncio.sleep(0.08)
        await consumer.close()
        await log.abandon()
        turn += 1


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(shots(Path(sys.argv[1])))
