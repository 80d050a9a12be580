"""A real Chromium without a screen, driven by Playwright, and a real cluster for it to look at."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from dlog.console.http_server import ConsoleOptions, console
from dlog.local.cluster import LocalCluster
from ledger.client import LedgerClient
from tests.waiting import PATIENCE_S

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
ROUND_S: Final = 0.3


def chromium() -> str | None:
    """Return where a Chromium is installed, as Debian's package has it."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass(frozen=True, slots=True)
class Watched:
    cluster: LocalCluster
    client: LedgerClient
    address: str
    token: str
    browser: Browser

    async def log_in(self, context: BrowserContext) -> Page:
        """Return a page of *context*, which has logged in."""
        page = await context.new_page()
        await page.goto(f"{self.address}login")
        await page.get_by_label("Token").fill(self.token)
        await page.locator("main").get_by_role("button", name="Log in").click()
        await page.locator("#alive").get_by_text("live").wait_for()
        return page


@asynccontextmanager
async def watched(directory: Path, *, allow_changes: bool = False) -> AsyncIterator[Watched]:
    """Yield a cluster of processes, its console, and a browser."""
    options = ConsoleOptions(round_s=ROUND_S, allow_changes=allow_changes)
    async with LocalCluster(directory, bookies=3, autorecovery=True) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        try:
            async with (
                console(client, options) as served,
                async_playwright() as playwright,
            ):
                browser = await playwright.chromium.launch(
                    executable_path=chromium(),
                    args=["--no-sandbox"],  # of no use to pages of our own, and not for root
                    timeout=1000 * PATIENCE_S,
                )
                try:
                    yield Watched(cluster, client, served.address, served.token, browser)
                finally:
                    await browser.close()
        finally:
            await client.close()
