"""Orders to a bookie that runs, from pages: they are those of the commands."""

import re
from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.changes import last_changes
from dlog.console.pages import Console, ConsoleAccess
from dlog.console.poller import Gatherer
from dlog.local.cluster import LocalCluster
from dlog.settings import LogSettings
from ledger import Quorum
from ledger.client import LedgerClient
from ledger.registry import find_registration
from tests.dlog.console.looking import TOKEN, browser_of
from tests.waiting import eventually, until

pytestmark = pytest.mark.integration


async def test_a_bookie_collects_compacts_and_becomes_read_only_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLOG_AUDIT", "auto")
    async with LocalCluster(tmp_path, bookies=1) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        [name] = [bookie.name for bookie in cluster.bookies()]
        settings = LogSettings(quorum=Quorum(1, 1, 1))
        log = await Log.open("orders", client=client, settings=settings)
        await log.append_many([b"a record"] * 100)
        await log.close()
        gatherer = Gatherer(client)
        console = Console(gatherer, ConsoleAccess(token=TOKEN, allow_changes=True))
        async with browser_of(console) as browser:
            await browser.post("/login", data={"token": TOKEN})

            async def ordered(kind: str, **given: str) -> str:
                """Return what the page said first; wait for the end of what was ordered."""
                await gatherer._quick()
                fields = {"bookie": name, **given}
                page = await browser.get(f"/change/{kind}", params=fields)
                token = re.search(r'name="form_token" value="(\w+)"', page.text)
                assert token is not None, page.text
                answer = await browser.post(
                    f"/change/{kind}", data={**fields, "form_token": token[1]}
                )
                assert answer.status_code == 303, answer.text
                await until(lambda: not console.works.newest[0].running)
                return page.text

            async def is_read_only() -> bool:
                found = await find_registration(client.store, name)
                return found is not None and found.read_only

            async def is_writable() -> bool:
                return not await is_read_only()

            assert "<dt>ledgers</dt><dd>1" in await ordered("bookie-gc")
            assert "entry logs removed" in console.works.newest[0].said
            assert "live in them" in await ordered("bookie-compact")
            assert "moved in" in console.works.newest[0].said
            page = await ordered("bookie-readonly", switch="on")
            assert "<dt>writable bookies</dt><dd>1 → 0</dd>" in page
            assert "Then 0 bookies can be written to" in page
            await eventually(is_read_only)
            await ordered("bookie-readonly", switch="off")
            assert console.works.newest[0].said == "it is writable"
            await eventually(is_writable)
            await ordered("bookie-decommission", typed=name)
            assert console.works.newest[0].said.startswith("too few other bookies: ")
            await ordered("bookie-keep")
            assert console.works.newest[0].outcome == "done"
        found = [each.command for each in await last_changes(client)]
        assert found[:2] == ["bookie gc", "bookie compact"]
        await console.works.close()
        await gatherer._close()
        await client.close()
