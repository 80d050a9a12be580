"""The console in a real browser, on a real cluster that things happen to."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest
from playwright.async_api import Page, expect

from dlog.aio import Log
from dlog.aio.admin import log_exists
from dlog.console.event_stream import message
from tests.browser.chromium import Watched, chromium, watched
from tests.waiting import PATIENCE_S, ended

pytestmark = [
    pytest.mark.browser,
    pytest.mark.integration,
    pytest.mark.skipif(
        chromium() is None, reason="there is no Chromium here (Debian: apt install chromium)"
    ),
]
HOSTILE = "eu/<img src=x onerror=alert(1)><script>alert(2)<!script>"
PAYLOAD = b'{"n": %d, "html": "<img src=x onerror=alert(3)>", "deep": [1, {"er": null}]}'

SILENT: Final = re.compile(r"bookie-2\S* .*(does not answer clients|known and not registered)")

_LOOK: Final = "e => (s => [s.color, s.backgroundColor, s.borderTopColor])(getComputedStyle(e))"

_TABLE: Final = "[...document.querySelectorAll('.wide')].find(e => e.innerText.match('ensemble'))"
"""Looked up by the page itself: what a locator found may have been renewed since."""

expect.set_options(timeout=1000 * PATIENCE_S)


async def test_a_cluster_is_watched_while_things_happen_to_it(tmp_path: Path) -> None:
    async with watched(tmp_path) as at:
        context = await at.browser.new_context(color_scheme="dark")
        page = await at.log_in(context)
        wrong: list[str] = []
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await _a_log_is_written_and_taken_over(at, page)
        await _records_are_followed_and_found(at, page)
        await _a_bookie_is_killed(at, page)
        assert wrong == []
        assert all(each.startswith(at.address) for each in asked)
        await context.close()


async def test_a_page_says_that_its_console_has_fallen_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one_page(_: object, render: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
        yield message("page", await render())
        await asyncio.Event().wait()

    monkeypatch.setattr("dlog.console.pages.live", one_page)
    async with watched(tmp_path) as at:
        page = await at.log_in(await at.browser.new_context())
        await page.clock.install()
        await page.goto(at.address)
        await expect(page.locator("#alive")).to_have_text("live")
        await page.clock.run_for(20_000)
        await expect(page.locator("#alive")).to_have_text("not up to date: the console is silent")
        await page.route("**/live/**", lambda route: route.fulfill(status=401))
        await page.reload()
        await expect(page.locator("#alive")).to_have_text("not up to date: load this page again")
        await page.close()


async def test_tabs_out_of_sight_keep_no_other_from_being_opened(tmp_path: Path) -> None:
    async with watched(tmp_path) as at:
        context = await at.browser.new_context()
        await (await at.log_in(context)).close()
        tabs = [await context.new_page() for _ in range(8)]  # of one browser: six connections
        for page in tabs:
            await page.goto(at.address)
            await expect(page.locator("#alive")).to_have_text("live")
            await _sight(page, hidden=True)
        await _sight(tabs[0], hidden=False)
        await at.cluster.stop_bookie(2)
        silent = tabs[0].locator(".problems li", has_text=SILENT)
        await expect(silent).to_have_count(1)
        await context.close()


async def _sight(page: Page, *, hidden: bool) -> None:
    """Let the page believe that its tab is behind another one, or in front."""
    answer = f"{{value: {str(hidden).lower()}, configurable: true}}"
    await page.evaluate(
        f"Object.defineProperty(document, 'hidden', {answer});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )


async def test_a_log_is_truncated_and_deleted_by_clicks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLOG_AUDIT", "auto")
    async with watched(tmp_path, allow_changes=True) as at:
        writer = await Log.open(HOSTILE, client=at.client)
        await ended(writer.append_many([PAYLOAD % number for number in range(100)]))
        await ended(writer.close())
        context = await at.browser.new_context(viewport={"width": 390, "height": 800})
        page = await at.log_in(context)
        wrong: list[str] = []
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        await page.goto(f"{at.address}log?{urlencode({'name': HOSTILE})}")
        await page.get_by_role("link", name="Truncate").click()
        await page.get_by_label("First record to keep").fill("70")
        await page.get_by_role("button", name="What would it do?").click()
        await expect(page.locator(".facts")).to_contain_text("records that go70")
        await page.get_by_role("button", name="Truncate", exact=True).click()
        await expect(page.locator(".banner")).to_have_text("done: the first offset is 70 now")
        await page.goto(f"{at.address}log?{urlencode({'name': HOSTILE})}")
        await expect(page.locator(".facts").first).to_contain_text("first offset70")
        await page.get_by_role("link", name="Delete").click()
        await expect(page.locator(".facts")).to_contain_text("records that go30")
        too_wide = await page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not too_wide
        await page.get_by_label("to confirm").fill("another")
        await page.get_by_role("button", name="Delete for good").click()
        await expect(page.locator(".banner.wrong")).to_contain_text("type the name of the log")
        await page.get_by_label("to confirm").fill(HOSTILE)
        await page.get_by_role("button", name="Delete for good").click()
        await expect(page.locator(".banner")).to_have_text("done: it was deleted")
        assert not await log_exists(HOSTILE, client=at.client)
        await page.get_by_role("link", name="All changes").click()
        rows = page.locator("tr", has_text="log delete")
        await expect(rows.last).to_contain_text("browser at 127.0.0.1")
        assert wrong == []
        await context.close()


async def test_trouble_fits_on_a_phone_and_delete_looks_like_nothing_else(tmp_path: Path) -> None:
    log = f"telemetry/{'a_long_name_without_a_place_to_break_it' * 4}"
    async with watched(tmp_path, allow_changes=True) as at:
        writer = await ended(Log.open(log, client=at.client))
        await ended(writer.append(bytes(range(256)), key=b"\xff" * 50))
        context = await at.browser.new_context(viewport={"width": 390, "height": 800})
        page = await at.log_in(context)
        at.cluster.kill_bookie(2)
        await ended(writer.append_many([b"with two of three"] * 50))
        await page.goto(at.address)
        below = page.locator(".problems .warning, .problems .critical").locator("ul li")
        await expect(below.first).to_be_visible()
        await expect(page.get_by_role("heading", name="Repair")).to_be_visible()
        name = at.cluster.processes[2].name
        for path in (
            "",
            f"bookie?{urlencode({'name': name})}",
            "logs",
            f"log?{urlencode({'name': log})}",
            f"records?{urlencode({'log': log})}",
            f"record?{urlencode({'log': log, 'offset': 0})}",
            f"change/log-settings?{urlencode({'log': log})}",
            f"change/log-delete?{urlencode({'log': log})}",
            f"change/bookie-decommission?{urlencode({'bookie': name})}",
        ):
            await page.goto(at.address + path)
            too_wide = await page.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert not too_wide, f"/{path} is wider than a phone"
        await page.goto(f"{at.address}log?{urlencode({'name': log})}")
        looks = {
            each: await page.get_by_role("link", name=each, exact=True).evaluate(_LOOK)
            for each in ("Records", "Verify", "Delete")
        }
        assert len({tuple(look) for look in looks.values()}) == 3, looks
        await context.close()
        await writer.abandon()


async def _a_log_is_written_and_taken_over(at: Watched, page: Page) -> None:
    writer = await Log.open(HOSTILE, client=at.client)
    await ended(writer.append(PAYLOAD % 0, key=b"<b>k"))
    await page.goto(f"{at.address}logs?q=onerror")
    await page.get_by_role("link", name=HOSTILE).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    await expect(page.locator(".facts").first).to_contain_text("records1")
    await ended(writer.append_many([PAYLOAD % number for number in range(1, 100)]))
    await expect(page.locator(".facts").first).to_contain_text("records100")
    another = await Log.open(HOSTILE, client=at.client)
    epochs = f"epoch {writer.epoch} → {another.epoch}"
    await expect(page.locator(".takeover").first).to_contain_text(epochs)
    await expect(page.locator("svg.segments rect.open")).to_have_count(1)
    await another.close()
    await writer.abandon()


async def _records_are_followed_and_found(at: Watched, page: Page) -> None:
    await page.get_by_role("link", name="Records").click()
    await expect(page.locator("#rows tr")).to_have_count(50)
    await page.get_by_label("Shown as").select_option("json")
    await page.get_by_role("button", name="Go").click()
    await page.locator("#rows tr").first.get_by_text("deep").click()
    await page.get_by_role("link", name="Follow").click()
    await expect(page.locator("#alive")).to_have_text("following")
    writer = await Log.open(HOSTILE, client=at.client)
    await ended(writer.append(b'{"n": "a new one"}'))
    await expect(page.locator("#rows tr").first).to_contain_text("a new one")
    await page.get_by_role("link", name="Pause").click()
    await ended(writer.append(b"while it was paused"))
    await page.get_by_role("link", name="Go on").click()
    await expect(page.locator("#rows tr").first).to_contain_text("while it was paused")
    await page.get_by_role("link", name="Pause").click()
    await page.get_by_placeholder("Find in keys and values").fill("paused")
    await page.get_by_role("button", name="Find").click()
    await expect(page.locator("output")).to_contain_text("1 found in 102 records")
    await expect(page.locator("#rows tr")).to_have_count(1)
    await writer.close()


async def _a_bookie_is_killed(at: Watched, page: Page) -> None:
    await page.goto(at.address)
    card = page.locator(".card", has_text="bookie-2")
    await expect(card).to_contain_text("writable")
    await expect(card.locator("b").first).to_contain_text("B/s")
    at.cluster.kill_bookie(2)
    await expect(page.locator(".problems li").first).to_contain_text(SILENT)
    await expect(card).to_contain_text("has not answered for")
    await ended(at.cluster.restart_bookie(2))
    silent = page.locator(".problems", has_text=SILENT)
    await expect(silent).to_have_count(0)  # also where no problem is left
    await page.set_viewport_size({"width": 390, "height": 800})
    await _what_is_looked_at_is_left_alone(at, page)
    for path in ("", "logs", f"log?name={HOSTILE}", "ledgers"):
        await page.goto(at.address + path)
        too_wide = await page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not too_wide, f"/{path} is wider than a phone"
    await page.goto(f"{at.address}records?{urlencode({'log': HOSTILE})}")
    value = await page.locator(".payload").first.bounding_box()
    assert value is not None
    assert value["x"] + value["width"] <= 390, "the value is seen without moving anything aside"


async def _what_is_looked_at_is_left_alone(at: Watched, page: Page) -> None:
    """What was scrolled or marked stays as it is while its page is renewed."""
    await page.goto(f"{at.address}log?{urlencode({'name': HOSTILE})}")
    facts = page.locator(".facts").first
    await expect(facts).to_contain_text("records102")
    await expect(page.locator("#alive")).to_have_text("live")
    await page.evaluate(f"table = {_TABLE}; table.scrollLeft = 40; table.mark = true")
    writer = await Log.open(HOSTILE, client=at.client)
    await ended(writer.append(b"another one"))
    await expect(facts).to_contain_text("records103")
    found = await page.evaluate(f"table = {_TABLE}; [table.scrollLeft, table.mark ?? false]")
    assert found == [40, False]
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('.facts'))")
    await ended(writer.append(b"one more"))
    await expect(page.locator("#alive")).to_have_text("held while text is marked")
    await expect(facts).to_contain_text("records103")
    await page.evaluate("getSelection().removeAllRanges()")
    await expect(facts).to_contain_text("records104")
    await writer.close()
