"""Draws pages of the site for the documents: `make screenshots`, needs a Chromium.

Call: python -m tests.browser.site_shots SITE DIRECTORY
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, async_playwright

from tests.browser.chromium import chromium
from tests.waiting import PATIENCE_S

DRAWN: Final = {
    "site-front-light.png": ("index.html", "light", (1180, 720)),
    "site-commands-dark.png": ("commands.html#dlog-log-append", "dark", (1180, 720)),
}
"""Page, colours and window, by the file that is made."""


async def shots(site: str, into: Path) -> None:
    """Draw the pages of the site at the address *site*."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium(),
            args=["--no-sandbox"],  # of no use to pages of our own, and not for root
            timeout=1000 * PATIENCE_S,
        )
        for name, (page, scheme, window) in DRAWN.items():
            await _shot(browser, f"{site}/{page}", into / name, scheme, window)
        await browser.close()


async def _shot(
    browser: Browser, address: str, file: Path, scheme: str, window: tuple[int, int]
) -> None:
    width, height = window
    context = await browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": height},
        device_scale_factor=1,
    )
    page = await context.new_page()
    found = await page.goto(address)
    assert found is None or found.ok, f"{address}: {found.status_text}"
    anchor = address.partition("#")[2]
    if anchor:
        await page.locator(f"[id='{anchor}']").first.scroll_into_view_if_needed()
    await page.screenshot(path=file)
    await context.close()


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    asyncio.run(shots(Path(sys.argv[1]).resolve().as_uri(), Path(sys.argv[2])))
