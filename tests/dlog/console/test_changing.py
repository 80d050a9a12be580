"""Changes from pages: what they say first, who may make them, and that they are written down."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import pytest
from typer.main import get_command

from dlog.aio import Log
from dlog.aio.admin import (
    create_log,
    delete_log,
    list_logs,
    log_exists,
    log_info,
    log_settings,
)
from dlog.changes import LOG, Change, last_changes
from dlog.cli.app import app
from dlog.console.changes import KINDS, ordered
from dlog.console.pages import ConsoleAccess
from dlog.console.request_guard import COOKIE, SESSIONS_MAX
from dlog.console.works import ENDED_MAX, RUNNING_MAX, NotBegun, Ordered, Say, Works
from tests.dlog.console.looking import TOKEN, Looking, browser_of, looking, session_of
from tests.waiting import ended, until

CHANGES = ConsoleAccess(token=TOKEN, allow_changes=True)
HOSTILE = "eu/<script>alert(1)<!script>'\"&{{987654*987654}}"


@pytest.fixture(autouse=True)
def _written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_AUDIT", "auto")


@asynccontextmanager
async def changing(log: str = "orders", records: int = 100) -> AsyncIterator[Looking]:
    """Yield a browser that has logged in where changes are allowed, and a log with records."""
    async with looking(CHANGES) as at:
        writer = await Log.open(log, client=at.client)
        await writer.append_many([b"<b>a record"] * records)
        await writer.close()
        await log_in(at)
        yield at


async def log_in(at: Looking) -> None:
    answer = await at.browser.post("/login", data={"token": TOKEN})
    assert answer.status_code == 303


def fields_of(page: str) -> dict[str, str]:
    """Return what the form that confirms sends."""
    form = page.split('method="post" action="/change')[1].split("</form>", maxsplit=1)[0]
    found = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in found}


async def confirmed(at: Looking, kind: str, typed: str = "", **given: str) -> httpx.Response:
    """Ask, and confirm what was said."""
    fields = fields_of(await at.page(f"/change/{kind}", **given))
    return await at.browser.post(f"/change/{kind}", data={**fields, "typed": typed})


async def made(at: Looking, answer: httpx.Response) -> str:
    """Return the page of a change that was begun, once it has ended."""
    assert answer.status_code == 303, answer.text
    works = at.console.works
    await until(lambda: not any(each.running for each in works.newest))
    return await at.page(answer.headers["location"])


async def written(at: Looking) -> list[Change]:
    return await last_changes(at.client)


# What is said, done and written down.


async def test_a_truncation_says_what_goes_and_does_just_that() -> None:
    async with changing() as at:
        consumer = await Log.consumer("billing", "orders", start=30, client=at.client)
        await consumer.close()
        page = await at.page("/change/log-truncate", log="orders")
        assert "What would it do?" in page
        assert 'method="post" action="/change' not in page
        page = await at.page("/change/log-truncate", log="orders", before="70")
        assert "<dt>records that go</dt><dd>70</dd>" in page
        assert re.search(r"billing</td><td class=\"num\">40 records", page)
        another = await Log.open("orders", client=at.client)
        await another.append(b"meanwhile")
        await another.close()
        answer = await at.browser.post("/change/log-truncate", data=fields_of(page))
        assert "done</b>: the first offset is 70 now" in await made(at, answer)
        assert (await log_info("orders", client=at.client)).manifest.trim_offset == 70
        [change] = await written(at)
        assert (change.command, change.outcome) == ("log truncate", "done")
        assert change.arguments == {"log": "orders", "before": "70"}
        assert "@" in change.who
        assert re.match(r"browser at 127\.0\.0\.1, console \S+:\d+", change.place)
        page = await at.page("/changes")
        assert page.count("log truncate log=orders before=70") == 2


async def test_a_log_is_sealed_once_its_name_is_typed() -> None:
    async with changing() as at:
        page = await at.page("/change/log-seal", log="orders")
        assert "no way back" in page
        refused = await confirmed(at, "log-seal", typed="order", log="orders")
        assert refused.status_code == 409
        assert "type the name of the log" in refused.text
        assert at.console.works.newest == []
        answer = await confirmed(at, "log-seal", typed="orders", log="orders")
        assert "the offset after its end is 100" in await made(at, answer)
        assert "There is nothing to be done" in await at.page("/change/log-seal", log="orders")


async def test_a_log_is_deleted_once_its_name_is_typed_and_not_one_that_was_made_anew() -> None:
    async with changing(HOSTILE) as at:
        page = await at.page("/change/log-delete", log=HOSTILE)
        assert "<dt>records that go</dt><dd>100</dd>" in page
        fields = {"form_token": fields_of(page)["form_token"], "log": HOSTILE, "typed": HOSTILE}
        refused = await at.browser.post("/change/log-delete", data=fields)
        assert "does not name the incarnation of the log" in refused.text
        answer = await at.browser.post(
            "/change/log-delete", data={**fields, "incarnation": "of another"}
        )
        assert "another one has its name" in await made(at, answer)
        assert await log_exists(HOSTILE, client=at.client)
        fields["incarnation"] = fields_of(page)["incarnation"]
        await made(at, await at.browser.post("/change/log-delete", data=fields))
        assert not await log_exists(HOSTILE, client=at.client)
        assert [each.outcome for each in await written(at)] == ["failed", "done"]


LOG_CHANGES: Final[dict[str, dict[str, str]]] = {
    "log-truncate": {"before": "70"},
    "log-seal": {},
    "log-settings": {"set.retention_age_s": "3600"},
    "log-verify": {},
}


@pytest.mark.parametrize("kind", LOG_CHANGES)
async def test_a_log_that_was_made_anew_after_the_confirmation_was_shown_is_left_alone(
    kind: str,
) -> None:
    async with changing() as at:
        shown = fields_of(await at.page(f"/change/{kind}", log="orders", **LOG_CHANGES[kind]))
        await delete_log("orders", client=at.client)
        await create_log("orders", client=at.client)
        anew = (await log_info("orders", client=at.client)).manifest
        answer = await at.browser.post(f"/change/{kind}", data={**shown, "typed": "orders"})
        assert "another one has its name" in await made(at, answer)
        assert (await log_info("orders", client=at.client)).manifest == anew


async def test_what_goes_is_counted_when_it_is_asked_and_not_when_it_was_last_looked_at() -> None:
    async with changing() as at:
        at.gatherer.round_s = 3600.0
        rounds = at.gatherer.cluster.rounds
        await until(lambda: at.gatherer.cluster.rounds > rounds, "the next one is far")
        writer = await Log.open("orders", client=at.client)
        await writer.append_many([b"more"] * 7)
        await writer.close()
        page = await at.page("/change/log-delete", log="orders")
        assert "<dt>records that go</dt><dd>107</dd>" in page


async def test_settings_say_what_they_were_and_what_retention_then_takes() -> None:
    async with changing() as at:
        for _ in range(2):  # the first segment is sealed then
            await (await Log.open("orders", client=at.client)).close()
        consumer = await Log.consumer("billing", "orders", client=at.client)
        await consumer.close()
        given = {"log": "orders", "set.retention_bytes": "1", "set.codec": "zstd:3"}
        page = await at.page("/change/log-settings", **given)
        assert "<dt>retention_bytes</dt><dd>no limit → 1 B</dd>" in page
        assert "<dt>codec</dt><dd>none → zstd:3</dd>" in page
        page = await at.page("/change/log-settings", log="orders", **{"set.roll_bytes": "1G"})
        assert 'method="post" action="/change' not in page  # it is that already
        await made(at, await confirmed(at, "log-settings", **given))
        settings = await log_settings("orders", client=at.client)
        assert (settings.retention_bytes, settings.codec_level) == (1, 3)
        [change] = await written(at)
        assert change.command == "log settings set"
        assert sorted(change.arguments["pairs"]) == ["codec=zstd:3", "retention_bytes=1"]  # type: ignore[arg-type]


async def test_a_key_that_is_pasted_for_its_name_is_written_down_nowhere() -> None:
    async with changing() as at:
        page = await at.page("/change/log-settings", log="orders", **{"set.codec": "lz4"})
        secret = f"{'A' * 43}="
        fields = {**fields_of(page), "set.encrypt_with": secret}
        answer = await at.browser.post("/change/log-settings", data=fields)
        assert answer.status_code == 400
        assert secret not in answer.text
        assert await written(at) == []


async def test_a_log_is_verified_with_its_progress_and_it_is_told_what_is_wrong() -> None:
    async with changing() as at:
        answer = await confirmed(at, "log-verify", log="orders")
        assert "no problems found" in await made(at, answer)
        await at.cluster.kill_bookie(1)
        answer = await confirmed(at, "log-verify", log="orders")
        assert "marked for repair" in await made(at, answer)


async def test_dlogs_own_logs_are_not_changed_from_a_page() -> None:
    async with changing() as at:
        for kind, each in KINDS.items():
            if each.subject == "log":
                answer = await at.browser.get(f"/change/{kind}", params={"log": LOG})
                assert answer.status_code == 400
                with pytest.raises(NotBegun, match="from the command line"):
                    ordered(each, at.gatherer, {"log": LOG, "typed": LOG, "before": "1"})


async def test_orders_say_what_the_bookie_holds_or_that_it_does_not_answer() -> None:
    async with changing() as at:
        for kind in [name for name, each in KINDS.items() if each.subject == "bookie"]:
            page = await at.page(f"/change/{kind}", bookie="bookie-0", switch="on")
            assert "not known: it does not answer" in page
            given = {"bookie": "<b>", "switch": "on"}
            answer = await at.browser.get(f"/change/{kind}", params=given)
            assert answer.status_code == 400
            assert "<b>" not in answer.text


async def test_what_fails_is_said_and_written_down_as_failed() -> None:
    async with changing() as at:
        answer = await confirmed(at, "bookie-gc", bookie="bookie-0")
        assert "accepts no operator requests" in await made(at, answer)
        [change] = await written(at)
        assert (change.command, change.outcome) == ("bookie gc", "failed")
        assert change.arguments == {"bookies": ["bookie-0"]}


# What is written down can be read as commands.


async def test_each_kind_is_written_down_as_a_command_that_changes_something() -> None:
    given = {"log": "a", "bookie": "bookie-0", "before": "1", "switch": "on", "set.codec": "lz4"}
    given["incarnation"] = "of the log that was shown"
    async with looking(CHANGES) as at:
        for kind in KINDS.values():
            subject = given[kind.subject]
            order = ordered(kind, at.gatherer, {**given, "typed": subject})
            assert order.subject == subject
            command: Any = get_command(app)
            for word in order.command.split():
                command = command.commands[word]
            assert command.effect.changes({"dry_run": False, **order.arguments})
            assert order.arguments.keys() <= {each.name for each in command.params}


# Works are bounded, and end.


def waiting(subject: str) -> tuple[Ordered, asyncio.Event]:
    go_on = asyncio.Event()

    async def make(say: Say) -> str:
        say("half of it", 500)
        await go_on.wait()
        return "whole"

    return Ordered(command="log seal", subject=subject, arguments={}, make=make), go_on


async def test_so_many_changes_are_under_way_at_once_and_none_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DLOG_AUDIT", "off")
    async with looking(CHANGES) as at:
        works = Works(at.client, lambda: None)
        for number in range(RUNNING_MAX):
            works.begin(waiting(f"log {number}")[0], place="here")
            with pytest.raises(NotBegun, match="under way already" if number < 7 else "8 other"):
                works.begin(waiting(f"log {number}")[0], place="here")
        first = works.newest[-1]
        await until(lambda: first.permille == 500)
        works.stop(first.number)
        await until(lambda: not first.running)
        assert (first.outcome, first.said) == ("interrupted", "it was stopped")
        await ended(works.close())
        assert not any(each.running for each in works.newest)


async def test_those_that_ended_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_AUDIT", "off")
    async with looking(CHANGES) as at:
        works = Works(at.client, lambda: None)
        for number in range(ENDED_MAX + 10):
            order, go_on = waiting(str(number))
            go_on.set()
            work = works.begin(order, place="here")
            assert work.task is not None
            await work.task
        assert len(works.newest) <= ENDED_MAX + 1
        assert works.newest[0].said == "whole"


async def test_a_change_is_stopped_from_its_page() -> None:
    async with changing() as at:
        for begun in (True, False):  # also one that has not made its first step
            work = at.console.works.begin(waiting("orders")[0], place="here")
            token = at.console.sessions.form_token(at.browser.cookies[COOKIE])
            if begun:
                await until(lambda work=work: work.permille == 500)  # type: ignore[misc]
                page = await at.page("/work", number=work.number)
                assert f'name="form_token" value="{token}"' in page
                fields = {"form_token": token, "number": work.number}
                answer = await at.browser.post("/stop", data=fields)
                assert answer.headers["location"] == f"/work?number={work.number}"
            else:
                at.console.works.stop(work.number)
            await until(lambda work=work: not work.running)  # type: ignore[misc]
            assert "it was stopped" in await at.page("/work", number=work.number)
        assert [each.outcome for each in await written(at)] == ["interrupted"]
        assert (await at.browser.get("/work", params={"number": "none"})).status_code == 404


# Who may.


def posts(at: Looking) -> list[str]:
    """Return every address to which something can be sent, but to log in and out."""
    found = []
    for route in at.console.routes:
        if "POST" in (route.methods or ()) and route.path not in ("/login", "/logout"):
            found += [route.path.replace("{kind}", kind) for kind in KINDS]
    return list(dict.fromkeys(found))


async def valid(at: Looking, session: str | None = None) -> dict[str, str]:
    """Return fields with which each change would go through, if they were of this session."""
    manifest = (await log_info("orders", client=at.client)).manifest
    return {
        "log": "orders",
        "bookie": "bookie-0",
        "incarnation": manifest.incarnation,
        "before": "70",
        "switch": "on",
        "set.codec": "lz4",
        "form_token": at.console.sessions.form_token(session or ""),
    }


async def unchanged(at: Looking) -> None:
    assert at.console.works.newest == []
    assert await list_logs(client=at.client) == ["orders"]
    info = await log_info("orders", client=at.client)
    assert (info.manifest.trim_offset, info.manifest.sealed) == (0, False)
    assert info.manifest.settings.codec.name == "NONE"
    assert await written(at) == []


@pytest.mark.parametrize("login", [False, True])
async def test_without_allow_changes_no_address_changes_anything(login: bool) -> None:
    access = ConsoleAccess(token=TOKEN)
    async with looking(access) as at:
        await create_log("orders", client=at.client)
        session = None
        if login:
            session = session_of(await at.browser.post("/login", data={"token": TOKEN}))
        fields = await valid(at, session)
        for path in posts(at):
            for typed in ("orders", "bookie-0"):
                answer = await at.browser.post(path, data={**fields, "typed": typed})
                assert answer.status_code == 403, path
                assert "--allow-changes" in answer.text
        for path in [route.path for route in at.console.routes]:
            for kind in KINDS:
                where = path.replace("{kind}", kind)
                for method in ("PUT", "PATCH", "DELETE", "POST"):
                    if where in ("/login", "/logout"):
                        continue
                    answer = await at.browser.request(method, where, params=fields)
                    assert answer.status_code in (403, 405), (method, where)
                if kind in where:
                    assert (await at.browser.get(where, params=fields)).status_code == 403
        assert "/change/" not in await at.page("/log", name="orders")
        await unchanged(at)


async def test_without_a_session_nothing_is_changed_or_asked() -> None:
    async with looking(CHANGES) as at:
        await create_log("orders", client=at.client)
        fields = await valid(at)
        forged = ("", "x" * 43, "../../etc/passwd", '"; Path=/', "\x00", TOKEN)
        for cookie in forged:
            headers = {"cookie": f"{COOKIE}={cookie}"}
            for path in posts(at):
                answer = await at.browser.post(path, data=fields, headers=headers)
                assert answer.status_code == 401, (path, cookie)
                if path.startswith("/change/"):
                    asked = await at.browser.get(path, params={"log": "orders"}, headers=headers)
                    assert asked.headers["location"].startswith("/login?next=/change/")
        await unchanged(at)


async def test_a_session_ends_with_the_logout_and_when_too_many_came_after_it() -> None:
    async with changing() as at:
        fields = fields_of(await at.page("/change/log-seal", log="orders"))
        first = at.browser.cookies[COOKIE]
        await at.browser.post("/logout", data={"form_token": fields["form_token"]})
        headers = {"cookie": f"{COOKIE}={first}"}
        answer = await at.browser.post("/change/log-seal", data=fields, headers=headers)
        assert answer.status_code == 401
        await log_in(at)
        second = at.browser.cookies[COOKIE]
        for number in range(SESSIONS_MAX):
            at.console.sessions.log_in(TOKEN, f"another {number}", "192.0.2.1", 1e9)
        headers = {"cookie": f"{COOKIE}={second}"}
        answer = await at.browser.post("/change/log-seal", data=fields, headers=headers)
        assert answer.status_code == 401


async def test_without_the_forms_token_nothing_is_changed() -> None:
    async with looking(CHANGES) as at:
        await create_log("orders", client=at.client)
        session = session_of(await at.browser.post("/login", data={"token": TOKEN}))
        fields = await valid(at, session)
        async with browser_of(at.console) as other:
            theirs = session_of(await other.post("/login", data={"token": TOKEN}))
        tokens = ("", "0" * 64, "é", at.console.sessions.form_token(theirs), session, TOKEN)
        for path in posts(at):
            for typed in ("orders", "bookie-0"):
                given = {**fields, "typed": typed}
                for token in tokens:
                    answer = await at.browser.post(path, data={**given, "form_token": token})
                    assert answer.status_code == 403, (path, token)
                del given["form_token"]
                assert (await at.browser.post(path, data=given)).status_code == 403
        await unchanged(at)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=lambda headers: "-".join(*headers.items()),
)
async def test_from_another_host_or_origin_nothing_is_changed(headers: dict[str, str]) -> None:
    async with looking(CHANGES) as at:
        await create_log("orders", client=at.client)
        session = session_of(await at.browser.post("/login", data={"token": TOKEN}))
        fields = await valid(at, session)
        for path in posts(at):
            for typed in ("orders", "bookie-0"):
                answer = await at.browser.post(
                    path, data={**fields, "typed": typed}, headers=headers
                )
                assert answer.status_code in (403, 421), path
        await unchanged(at)


async def test_a_form_that_is_too_large_or_no_form_changes_nothing() -> None:
    async with changing() as at:
        for content in (b"x" * 20_000, b"log=" + b"%ff" * 10, b"&".join([b"a=1"] * 60)):
            answer = await at.browser.post("/change/log-seal", content=content)
            assert answer.status_code in (400, 403, 413)
        assert at.console.works.newest == []


async def test_the_cookie_is_for_this_site_alone_and_secure_under_tls() -> None:
    for secure in (False, True):
        access = ConsoleAccess(token=TOKEN, allow_changes=True, secure=secure)
        async with looking(access) as at:
            answer = await at.browser.post("/login", data={"token": TOKEN})
            cookie = answer.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert ("secure" in cookie) is secure


async def test_a_token_is_on_no_page_and_in_no_line_of_the_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with changing(HOSTILE) as at:
        await at.browser.post("/login", data={"token": f"{TOKEN} almost"})
        await made(at, await confirmed(at, "log-seal", typed=HOSTILE, log=HOSTILE))
        session = at.browser.cookies[COOKIE]
        pages = ["/", "/logs", "/changes", "/login", "/ledgers", "/nothing"]
        for path in pages:
            text = (await at.browser.get(path)).text
            assert TOKEN not in text
            assert session not in text
            assert not re.search(r"<script(?! src=\"/static)|975460423716", text)
        page = await at.page("/change/log-delete", log=HOSTILE)
        assert not re.search(r"<script(?! src=\"/static)|975460423716", page)
    said = capfd.readouterr()
    for text in (said.out, said.err):
        assert TOKEN not in text
        assert session not in text
