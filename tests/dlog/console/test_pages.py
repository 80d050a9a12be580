"""Pages of the console on a cluster in this process."""

import asyncio
import re
from pathlib import Path
from typing import BinaryIO

import httpx
import pytest

from dlog import Command, StateMachine
from dlog.aio import Log, Replica, replica_registry
from dlog.aio.admin import create_log, set_log_schema
from dlog.aio.read.tails import TailTracker
from dlog.console import pages, poller
from dlog.console.cluster_state import LogLook
from dlog.console.event_stream import Streams, live
from dlog.console.pages import ConsoleAccess
from dlog.console.poller import LOGS_MAX, Gatherer
from dlog.console.request_guard import FAILURES_MAX
from dlog.log_schema import LogSchema
from dlog.testing import AsyncCluster
from ledger.client import LedgerClient
from tests.dlog.console.looking import TOKEN, Looking, browser_of, log_in, looking
from tests.waiting import PATIENCE_S, ended, eventually, until

HOSTILE = "eu/<script>alert(1)<!script>'\"&{{987654*987654}}"
PAYLOAD = b'{"html": "<script>alert(2)</script>", "n": [1, {"deep": null}]}'


async def filled(at: Looking, log: str = HOSTILE, records: int = 120) -> Log:
    writer = await Log.open(log, client=at.client)
    for number in range(records):
        writer.append_async(
            PAYLOAD, key=b"<b>key", txid=number, headers={"<i>": b"<script>alert(3)</script>"}
        )
    await writer.flush()
    return writer


async def test_the_cluster_is_shown_and_what_is_wrong_comes_first() -> None:
    async with looking() as at:
        page = await at.page("/")
        assert all(f"bookie-{index}" in page for index in range(3))
        await at.cluster.kill_bookie(2)
        await until(lambda: at.gatherer.cluster.states["bookie-2"] == "away")
        page = await at.page("/")
        wrong, first_card = page.index("bookie bookie-2 (last at"), page.index('class="card')
        assert wrong < first_card
        assert wrong < page.index("2 bookies are writable, and by default") < first_card
        assert "bookie-2 is away now; it was writable" in page
        assert "Start it again" in page
        await at.cluster.restart_bookie(2)
        await until(lambda: at.gatherer.cluster.bookies["bookie-2"].silent_since is None)
        page = await at.page("/")
        assert "is known and not registered" not in page
        assert "has not answered" not in page


async def test_names_and_payloads_never_become_markup() -> None:
    async with looking() as at:
        writer = await filled(at)
        await until(lambda: HOSTILE in at.gatherer.names)
        for form in ("text", "json", "hex"):
            for page in (
                await at.page("/logs", q="script"),
                await at.page("/log", name=HOSTILE),
                await at.page("/records", log=HOSTILE, **{"as": form}),
                await at.page("/record", log=HOSTILE, offset="7", **{"as": form}),
                await at.page("/live/search", log=HOSTILE, text="deep", **{"as": form}),
                await at.page("/records", log=HOSTILE, at="<script>alert(4)"),
            ):
                assert not re.search(r"<script(?! src=\"/static)|<b>key|<i>|975460423716", page)
        await writer.close()


@pytest.mark.spark  # pyarrow comes with it
async def test_records_are_shown_as_rows_of_the_schema_and_what_is_none_says_why() -> None:
    definition = b'{"type": "object", "properties": {"customer": {"type": "string"}}}'
    async with looking() as at:
        await create_log("orders", client=at.client)
        assert "has no schema" in await at.page("/records", log="orders", **{"as": "schema"})
        await set_log_schema(
            "orders", LogSchema(format="json", definition=definition), client=at.client
        )
        async with await Log.open("orders", client=at.client) as writer:
            await writer.append(b'{"customer": "<b>Anna", "more": 1}')
            await writer.append(b"[1]")
        page = await at.page("/records", log="orders", **{"as": "schema"})
        assert "&lt;b&gt;Anna" in page
        assert "more" not in page.partition("&lt;b&gt;Anna")[2].partition("</tr>")[0]
        assert "record 1 is none of the schema" in page
        page = await at.page("/record", log="orders", offset="1", **{"as": "schema"})
        assert "record 1 is none of the schema" in page
        assert "[1]" in page


class Count(StateMachine):
    count = 0

    def apply(self, _: Command) -> object:
        self.count += 1
        return self.count

    def snapshot(self, out: BinaryIO) -> None:
        out.write(b"%d" % self.count)

    def restore(self, source: BinaryIO) -> None:
        self.count = int(source.read())


async def test_a_log_shows_its_replicas_and_their_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_registry, "STATUS_S", 0.0)
    monkeypatch.setattr(replica_registry, "POLL_S", 0.02)
    async with (
        looking() as at,
        Replica.open(
            "accounts",
            Count(),
            client=at.client,
            candidate="<b>app-1",
            address="http://app-1:8000",
            snapshots=str(tmp_path),
        ) as replica,
    ):
        assert await replica.wait_role("leader", timeout_s=PATIENCE_S)
        await replica.submit(b"x")
        offset = await replica.snapshot()

        async def shows_the_snapshot() -> bool:
            page = await at.page("/log", name="accounts")
            return f'<td class="num">{offset}</td><td>{tmp_path.as_uri()}</td>' in page

        await eventually(shows_the_snapshot)
        page = await at.page("/log", name="accounts")
        assert "<h3>Replicas</h3>" in page
        assert '<td class="name">&lt;b&gt;app-1</td><td>leader</td>' in page
        assert "http://app-1:8000" in page


async def test_a_log_shows_segments_its_takeovers_and_who_lags() -> None:
    async with looking() as at:
        writer = await filled(at, "orders")
        consumer = await Log.consumer("billing", "orders", client=at.client)
        await consumer.close()

        async def shows_the_consumer() -> bool:  # it may have been looked at just before
            return "billing" in await at.page("/log", name="orders")

        await eventually(shows_the_consumer)
        page = await at.page("/log", name="orders")
        assert 'class="open"' in page
        assert "None is known of" in page
        another = await Log.open("orders", client=at.client)
        seen = at.gatherer._followed["orders"].seen
        await until(lambda: len(seen.takeovers) == 1)
        page = await at.page("/log", name="orders")
        assert f"epoch {writer.epoch} → {another.epoch}" in page
        assert 'class="sealed"' in page
        await until(lambda: seen.lags["billing"].last == 120)
        await until(lambda: "orders" in at.gatherer.names)
        assert ">120</td>" in await at.page("/logs")
        await another.close()
        await writer.abandon()


async def test_a_takeover_before_the_console_was_there_is_known_by_its_segment() -> None:
    writers: list[Log] = []

    async def write_in_turn(client: LedgerClient) -> None:
        for _ in range(2):
            writers.append(await Log.open("orders", client=client))
            await writers[-1].append(b"a record")

    async with looking(before=write_in_turn) as at:
        first, second = writers

        async def is_shown() -> bool:
            page = await at.page("/log", name="orders")
            return f"epoch {first.epoch} → {second.epoch}, by " in page

        await eventually(is_shown)
        assert not at.gatherer._followed["orders"].seen.takeovers
        await second.close()
        await first.abandon()


async def test_settings_have_units_and_curves_a_scale_and_times() -> None:
    async with looking() as at:
        writer = await filled(at, "orders")

        async def is_drawn() -> bool:
            await writer.append(b"one more")
            page = await at.page("/log", name="orders")
            return re.search(r'<polyline.*<span class="top">\S+( [kM])?/s</span>', page) is not None

        await eventually(is_drawn)
        page = await at.page("/log", name="orders")
        assert "<figcaption><span>5 min ago</span><span>now</span></figcaption>" in page
        for name, value in (
            ("roll_bytes", "1 GiB"),
            ("roll_age_s", "2 h"),
            ("roll_idle_s", "no limit"),
            ("encrypt_with", "not encrypted"),
        ):
            assert f"<dt>{name}</dt><dd>{value}</dd>" in page
        assert "<figcaption>" in await at.page("/")
        await writer.close()


async def test_what_is_no_text_is_shown_in_hexadecimal_digits_unasked() -> None:
    async with looking() as at:
        writer = await Log.open("orders", client=at.client)
        await writer.append(b"\x08\x96\x01", key=b"\xff\x00")
        await writer.close()
        for page in (
            await at.page("/records", log="orders"),
            await at.page("/record", log="orders", offset="0"),
            await at.page("/live/search", log="orders", text="\x08"),
        ):
            assert "00000000  08 96 01" in page
            assert "0xff00" in page


async def test_what_cannot_be_undone_looks_like_nothing_else() -> None:
    async with looking(ConsoleAccess(token=TOKEN, allow_changes=True)) as at:
        await (await Log.open("orders", client=at.client)).close()
        page = await at.page("/log", name="orders")
        buttons = re.findall(r'<a class="button ?([a-z]*)"[^>]*>([^<]*)</a>', page)
        assert buttons == [
            ("primary", "Records"),
            ("quiet", "Truncate"),
            ("quiet", "Settings"),
            ("quiet", "Verify"),
            ("danger", "Seal"),
            ("danger", "Delete"),
        ]
        assert page.index('class="apart"') < page.index("Seal</a>")
        style = await at.page("/static/console.css")
        assert re.search(r"\.button\.danger \{[^}]*color: var\(--wrong\)", style)
        page = await at.page("/bookie", name="bookie-0")
        assert re.findall(r'<a class="button danger"[^>]*>([^<]*)</a>', page) == ["Decommission"]


def test_nothing_in_the_sheet_is_wider_than_a_phone() -> None:
    """What the test with a browser measures, as far as the sheet says it."""
    sheet = (Path(pages.__file__).parent / "static" / "console.css").read_text()
    sheet = re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL)
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", sheet)
    unbroken = {sel.strip() for sel, body in rules if "white-space: nowrap" in body}
    assert unbroken == {".curves b", "th", ".time, .wide td"}, "what scrolls, or is always short"
    for selector, body in rules:
        for least in re.findall(r"min-width: ([\d.]+)rem", body):
            assert float(least) * 14 < 390, selector
        grid = re.search(r"grid-template-columns:([^;]*)", body)
        if grid is not None and ".asks" in selector:
            assert "minmax(0, 1fr)" in grid[1], "a long name widens a column of 1fr"
    of = {sel.strip(): body for sel, body in rules}
    for selector in (".now", "footer", ".facts dd", ".problems > li"):
        assert re.search("flex-wrap: wrap|overflow-wrap: anywhere", of[selector]), selector


@pytest.mark.parametrize(
    ("at", "first"), [("10", 10), ("txid:30", 30), ("1:0:0", 0), ("start", 0), ("end", 70)]
)
async def test_records_are_found_by_offset_txid_and_dlsn(at: str, first: int) -> None:
    async with looking() as here:
        writer = await filled(here, "orders")
        page = await here.page("/records", log="orders", at=at)
        assert f"records {first}–{min(first + 50, 120) - 1}" in page
        await writer.close()


async def test_a_record_is_shown_as_a_tree_that_folds() -> None:
    async with looking() as at:
        writer = await filled(at, "orders")
        page = await at.page("/record", log="orders", offset="3", **{"as": "json"})
        assert re.search(r"<details open>.*<details>.*deep", page, re.DOTALL)
        await writer.close()


async def test_a_search_tells_how_far_it_came_and_what_it_found() -> None:
    async with looking() as at:
        writer = await filled(at, "orders")
        await writer.append(b"the needle")
        found = await at.page("/live/search", log="orders", text="needle")
        assert found.count("event: rows") == 1
        assert "1 found in 121 records up to offset 121" in found
        assert "event: end" in await at.page("/live/search", log="no-log", text="x")
        await writer.close()


async def test_a_check_of_a_ledger_finds_the_copies_of_a_dead_bookie() -> None:
    async with looking() as at:
        writer = await filled(at, "orders")
        await writer.close()
        ledger = (await at.gatherer.look_now("orders", wait_s=PATIENCE_S)).look.manifest
        assert ledger is not None
        number = str(ledger.segments[0].ledger_id)
        assert "all copies are there and right" in await at.page("/live/verify", id=number)
        await at.cluster.kill_bookie(1)
        assert "on bookie-1: unreachable" in await at.page("/live/verify", id=number)
        assert "bookie-1" in await at.page("/ledger", id=number)
        assert "orders" in await at.page("/ledgers")


async def test_a_log_that_is_looked_at_now_is_not_forgotten_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "LOGS_AT_FIRST", 0)  # it is not followed without being asked for
    async with looking() as at:
        writer = await filled(at, "orders")
        await writer.close()
        gatherer = Gatherer(at.client, clock=lambda: 1e6)
        looked, may_end = gatherer._looked, asyncio.Event()

        async def held(log: str, tracker: TailTracker) -> LogLook:
            await may_end.wait()
            return await looked(log, tracker)

        monkeypatch.setattr(gatherer, "_looked", held)
        asked = asyncio.ensure_future(gatherer.look_now("orders", wait_s=PATIENCE_S))
        await until(lambda: "orders" in gatherer._followed, "it is looked at")
        round_of_logs = asyncio.ensure_future(gatherer._look_at_logs())
        await asyncio.sleep(0)
        may_end.set()
        assert (await asked).look.manifest is not None
        await round_of_logs


async def test_however_many_logs_are_asked_for_so_many_are_followed() -> None:
    pages = [[f"z-{page}-{number}" for number in range(LOGS_MAX // 2)] for page in range(3)]
    async with looking() as at:
        writer = await filled(at, "orders")
        followed = at.gatherer._followed
        await until(lambda: "orders" in followed, "it is one of the first by name")
        for names in pages:
            await at.gatherer.want(names, wait_s=0)
            assert len(followed) <= LOGS_MAX
        seen = at.gatherer.cluster.rounds
        await until(lambda: at.gatherer.cluster.rounds > seen + 1)
        assert set(followed) == {*pages[1], *pages[2]}
        await writer.close()


async def test_a_stream_sends_a_page_when_it_looks_otherwise_and_ends_with_the_console() -> None:
    async with looking() as at:
        state = iter(("one", "one", "two"))

        async def render() -> str:
            return next(state)

        stream = live(at.gatherer, render)
        sent = [await anext(stream) for _ in range(3)]
        assert [each.split("\n")[0] for each in sent] == [
            "event: page",
            "event: still",
            "event: page",
        ]
        at.gatherer.stop()
        assert [each async for each in stream] == []


async def test_a_stream_says_how_old_its_page_is_also_while_nothing_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.console.event_stream.LIVE_S", 0.01)
    async with AsyncCluster() as cluster:
        client = await LedgerClient.connect(cluster.uri)
        ages = iter(("", "7 s", "9 s"))

        async def render() -> str:
            return next(ages)

        stream = live(Gatherer(client), render)
        assert "9 s" in [await ended(anext(stream)) for _ in range(3)][2]
        await client.close()


async def test_logs_that_do_not_answer_hold_up_no_look_at_the_bookies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()

    async def silent(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with looking() as at:
        writer = await filled(at, "orders")
        monkeypatch.setattr("dlog.console.poller.current_leader", silent)
        monkeypatch.setattr("dlog.console.poller.LOOK_S", 1e9)
        await until(asked.is_set, "the log is looked at")
        seen = at.gatherer.cluster
        looks = {seen.looked_at}

        def has_looked_often() -> bool:
            looks.add(seen.looked_at)
            return len(looks) > 5

        await until(has_looked_often, "the bookies are looked at")
        await writer.close()


async def test_one_stream_too_many_is_told_so() -> None:
    async with looking() as at:
        at.console.streams = Streams(at_most=0)
        assert "event: full" in await at.page("/live/cluster")


async def test_a_followed_log_brings_its_records_and_the_end_of_a_sealed_one() -> None:
    async with looking() as at:
        writer = await filled(at, "orders")
        await writer.seal()
        page = await at.page("/live/tail", log="orders", **{"from": "110"})
        assert "id: 120" in page
        assert "the log is sealed" in page


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/log?name=", 400),
        ("/log?name=/x", 400),
        ("/ledger?id=-1", 400),
        ("/ledger?id=99999999999999999999", 400),
        ("/ledger?id=77", 400),
        ("/record?log=none&offset=0", 400),
        ("/bookie?name=none", 404),
        ("/static/../pages.py", 404),
        ("/static/__init__.py", 404),
        ("/nothing", 404),
        ("/live/tail?log=x&from=nonsense", 400),
        (f"/logs?q={'x' * 5000}", 414),
    ],
)
async def test_what_cannot_be_shown_is_said_in_a_sentence(path: str, status: int) -> None:
    async with looking() as at:
        answer = await at.browser.get(path)
        assert answer.status_code == status
        assert "Traceback" not in answer.text


async def test_a_console_is_reached_by_its_own_names_only() -> None:
    async with looking() as at:
        for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost:x@evil.example"):
            answer = await at.browser.get("/", headers={"host": host})
            assert answer.status_code == 421, host
        assert (await at.browser.get("/", headers={"host": "127.0.0.1:8080"})).status_code == 200


async def test_every_answer_forbids_scripts_frames_and_sniffing() -> None:
    async with looking() as at:
        for path in ("/", "/static/console.js", "/nothing", "/live/verify?id=0"):
            headers = (await at.browser.get(path)).headers
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-frame-options"] == "DENY"
            assert headers["x-content-type-options"] == "nosniff"


async def test_no_page_has_a_script_or_a_style_of_its_own() -> None:
    async with looking() as at:
        writer = await filled(at, "orders")
        for path in ("/", "/logs", "/log?name=orders", "/records?log=orders", "/ledgers", "/login"):
            page = (await at.browser.get(path)).text
            assert not re.search(r"\sstyle=|<style|\son\w+=|javascript:|https?://", page), path
        await writer.close()


async def test_nothing_is_shown_without_a_login() -> None:
    async with looking(logged_in=False) as at:
        for route in at.console.routes:
            path = getattr(route, "path", "")
            if path != "/login" and not path.startswith("/static/"):
                answer = await at.browser.get(path)
                assert answer.status_code in (303, 401, 403), path
                assert answer.status_code != 303 or "/login?next=" in answer.headers["location"]
        answer = await at.browser.get("/logs")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/logs")
        assert (await at.browser.get("/live/cluster")).status_code == 401
        wrong = await at.browser.post("/login", data={"token": "wrong", "next": "/"})
        assert wrong.status_code == 403
        right = await at.browser.post("/login", data={"token": TOKEN, "next": "//evil.example"})
        assert right.headers["location"] == "/"
        cookie = right.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Log out" in await at.page("/")


async def test_an_address_logs_in_once() -> None:
    async with looking(ConsoleAccess(token=TOKEN, once="once only"), logged_in=False) as at:
        path = "/login?token=once%20only"
        assert "set-cookie" not in (await at.browser.get("/login?token=once")).headers
        assert "set-cookie" not in (await at.browser.head(path)).headers
        first = await at.browser.get(path)
        assert (first.status_code, first.headers["location"]) == (303, "/")
        assert "SameSite=strict" in first.headers["set-cookie"]
        assert "Log out" in await at.page("/")
        async with browser_of(at.console) as another:
            again = await another.get(path)
            assert "set-cookie" not in again.headers
            assert "worked once" in again.text
            assert (await another.get("/")).status_code == 303
            await log_in(another)
            assert "Log out" in (await another.get("/")).text


async def test_wrong_tokens_lock_out_nobody_else() -> None:
    """Nor anybody on this machine, whose users have one address."""
    async with looking(logged_in=False) as at:
        for _ in range(2 * FAILURES_MAX):
            answer = await at.browser.post("/login", data={"token": "wrong"})
            assert answer.status_code == 403
        await log_in(at.browser)
        assert "Log out" in await at.page("/")
        transport = httpx.ASGITransport(at.console.app, client=("192.0.2.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as other:
            for _ in range(FAILURES_MAX):
                await other.post("/login", data={"token": "wrong"})
            assert (await other.post("/login", data={"token": TOKEN})).status_code == 429
        await log_in(at.browser)


OF_ANOTHER_SITE = (
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    {"origin": "https://evil.example"},
)
"""An image or a script; a page at another port of this machine; a stream of an old browser."""


@pytest.mark.parametrize("headers", OF_ANOTHER_SITE)
async def test_what_a_page_of_another_site_asks_for_is_refused(headers: dict[str, str]) -> None:
    async with looking() as at:
        answer = await at.browser.post("/login", data={"token": TOKEN}, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
        for path in ("/", "/logs", "/records?log=a", "/live/cluster", "/static/console.js"):
            assert (await at.browser.get(path, headers=headers)).status_code == 403, path


async def test_a_link_of_another_site_leads_to_a_page_and_to_no_stream() -> None:
    followed = {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    async with looking() as at:
        assert (await at.browser.get("/logs", headers=followed)).status_code == 200
        assert (await at.browser.get("/live/cluster", headers=followed)).status_code == 403
        framed = {**followed, "sec-fetch-dest": "iframe"}
        assert (await at.browser.get("/logs", headers=framed)).status_code == 403


async def test_a_form_that_is_too_large_is_refused() -> None:
    async with looking(ConsoleAccess(token=TOKEN)) as at:
        answer = await at.browser.post("/login", content=b"x" * 20_000)
        assert answer.status_code == 413
