"""The addresses of the console, and what is behind each."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import escape
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dlog.aio.admin import log_schemas
from dlog.console.change_pages import ChangePages, address_of, form_fields, needs_session
from dlog.console.changes import KINDS
from dlog.console.cluster_state import LogSeen
from dlog.console.event_stream import (
    PAGE_RECORDS,
    VERIFIES_MAX,
    Streams,
    live,
    offset_of,
    position_of,
    read_records,
    search,
    tail,
    verify,
)
from dlog.console.metrics import REQUESTS
from dlog.console.poller import Gatherer
from dlog.console.request_guard import (
    COOKIE,
    HEADERS,
    LOOPBACK,
    SESSION_S,
    Sessions,
    host_of,
    is_followed_link,
    is_own_origin,
)
from dlog.console.views.cluster import card, cluster_page
from dlog.console.views.logs import find, ledger_list, ledger_page, ledgers_shown, log_page, row
from dlog.console.views.logs import page_of_ids as ids_of_page
from dlog.console.views.records import Form, RecordRow, form_of, record_row
from dlog.console.works import Works
from dlog.log_schema.records import DecodedRecord, decode_records
from dlog.names import check_name
from dlog.position import Record
from ledger.errors import LogError
from ledger.ids import LedgerId
from ledger.log_events import now_ms

FIRST_LOOK_S: Final = 0.3
"""A page waits so long for what was not looked at yet; the rest comes by itself."""
URL_BYTES_MAX: Final = 4 * 1024
NEXT_MAX: Final = 1024
"""Characters of where somebody goes on who had to log in first."""
LEDGER_MAX: Final = 2**63 - 1
STATIC: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_HERE: Final = Path(__file__).parent

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleAccess:
    """Who may come, and what for."""

    hosts: frozenset[str] = LOOPBACK
    """Names that a browser may know the console by."""
    token: str = field(repr=False)
    """What opens it."""
    once: str = field(default="", repr=False)
    """What opens it once, as part of an address; empty: nothing does."""
    allow_changes: bool = False
    """Whether who has logged in may change something."""
    secure: bool = False
    """Whether it is served by TLS."""


@dataclass(frozen=True, slots=True)
class SessionShown:
    known: bool
    form_token: str = field(repr=False)
    changes: bool
    """Whether this console allows changes."""


class Console:
    """The application; `app` is what a server serves."""

    def __init__(self, gatherer: Gatherer, access: ConsoleAccess) -> None:
        self.gatherer = gatherer
        self.access = access
        self.sessions = Sessions(access.token, secrets.token_bytes(32), once=access.once)
        self.streams = Streams()
        self.works = Works(gatherer.client, gatherer.tell)
        self._verifies = asyncio.Semaphore(VERIFIES_MAX)
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        routes = [
            Route("/", self._cluster),
            Route("/bookie", self._bookie),
            Route("/logs", self._logs),
            Route("/log", self._log),
            Route("/records", self._records),
            Route("/record", self._record),
            Route("/ledgers", self._ledgers),
            Route("/ledger", self._ledger),
            Route("/live/cluster", self._live(self._cluster_part)),
            Route("/live/bookie", self._live(self._bookie_part)),
            Route("/live/logs", self._live(self._logs_part)),
            Route("/live/log", self._live(self._log_part)),
            Route("/live/tail", self._tail),
            Route("/live/search", self._search),
            Route("/live/verify", self._verify),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/static/{name}", self._static),
            *ChangePages(self).routes(self._live),
        ]
        self.routes = routes
        starlette = Starlette(
            routes=routes,
            exception_handlers={HTTPException: self._refused, LogError: self._troubled},  # type: ignore[dict-item]
        )
        self.app: ASGIApp = Gate(starlette, self)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "There is no such file.")
        return Response((_HERE / "static" / name).read_bytes(), media_type=STATIC[name])

    # Pages.

    async def _cluster(self, request: Request) -> Response:
        page = cluster_page(self.gatherer.cluster, self.gatherer.now)
        return self.page(request, "cluster.html", here="cluster", page=page)

    async def _cluster_part(self, _request: Request) -> str:
        page = cluster_page(self.gatherer.cluster, self.gatherer.now)
        return self.render("cluster_live.html", page=page)

    async def _bookie(self, request: Request) -> Response:
        found = self._card(request)
        kinds = [(name, kind) for name, kind in KINDS.items() if kind.subject == "bookie"]
        return self.page(request, "bookie.html", here="cluster", card=found, kinds=kinds)

    async def _bookie_part(self, request: Request) -> str:
        return self.render("bookie_live.html", card=self._card(request))

    def _card(self, request: Request) -> object:
        name, cluster = request.query_params.get("name", ""), self.gatherer.cluster
        facts = next((each for each in cluster.known if each.bookie == name), None)
        if facts is None:
            raise HTTPException(404, f"No bookie {name[:200]!r} is known.")
        server = next((each for each in cluster.servers if each.bookie == name), None)
        return card(facts, server, cluster.bookies.get(name), self.gatherer.now)

    async def _logs(self, request: Request) -> Response:
        found = find(
            self.gatherer.names, request.query_params.get("q", ""), _number(request, "from")
        )
        return self.page(
            request,
            "logs.html",
            here="logs",
            found=found,
            known=self.gatherer.names_known,
            rows=await self._rows(found.names),
        )

    async def _logs_part(self, request: Request) -> str:
        found = find(
            self.gatherer.names, request.query_params.get("q", ""), _number(request, "from")
        )
        return self.render("logs_live.html", rows=await self._rows(found.names))

    async def _rows(self, names: Sequence[str]) -> Sequence[object]:
        seen = await self.gatherer.want(names, wait_s=FIRST_LOOK_S)
        return [row(name, seen.get(name)) for name in names]

    async def _log(self, request: Request) -> Response:
        page = await self._log_page(request)
        kinds = [(name, kind) for name, kind in KINDS.items() if kind.subject == "log"]
        return self.page(request, "log.html", here="logs", page=page, kinds=kinds)

    async def _log_part(self, request: Request) -> str:
        return self.render("log_live.html", page=await self._log_page(request))

    async def _log_page(self, request: Request) -> object:
        name = check_name(request.query_params.get("name", ""))
        seen = (await self.gatherer.want([name], wait_s=2.0)).get(name) or LogSeen()
        metadata = await self.gatherer.metadata_of(ledgers_shown(seen), wait_s=1.0)
        return log_page(name, seen, metadata, now_ms())

    async def _records(self, request: Request) -> Response:
        log = check_name(request.query_params.get("log", ""))
        at = request.query_params.get("at", "")[:100].strip() or "start"
        form = form_of(request.query_params.get("as", ""))
        client, trouble = self.gatherer.client, ""
        records: Sequence[Record] = ()
        first = end = oldest = 0
        try:
            oldest = await offset_of(client, log, "start")
            end = await offset_of(client, log, "end")
            first = max(oldest, await offset_of(client, log, position_of(at)))
            if at in ("end", "latest"):
                first = max(oldest, end - PAGE_RECORDS)
            if first < end:
                records = await read_records(client, log, first, min(PAGE_RECORDS, end - first))
        except LogError as error:
            trouble = str(error)
        rows, reason = await self._record_rows(log, records, form)
        trouble = trouble or reason
        after = records[-1].offset + 1 if records else end
        return self.page(
            request,
            "records.html",
            here="logs",
            log=log,
            at=at,
            form=form,
            forms=list(Form),
            rows=rows,
            first=first,
            end=after,
            trouble=trouble,
            before=max(oldest, first - PAGE_RECORDS) if first > oldest else None,
            after=after if after < end else None,
        )

    async def _record(self, request: Request) -> Response:
        log, offset = check_name(request.query_params.get("log", "")), _number(request, "offset")
        form = form_of(request.query_params.get("as", ""))
        found = await read_records(self.gatherer.client, log, offset, 1)
        if not found:
            raise HTTPException(404, f"Log {log!r} has no record at offset {offset}.")
        rows, trouble = await self._record_rows(log, found, form, whole=True)
        shown = rows[0]
        facts = [
            ("time", shown.time),
            ("txid", shown.txid),
            ("DLSN", shown.dlsn),
            ("key", shown.key),
            ("size", shown.size),
        ]
        return self.page(
            request,
            "record.html",
            here="logs",
            log=log,
            offset=offset,
            form=form,
            forms=list(Form),
            record=shown,
            facts=facts,
            trouble=trouble,
        )

    async def _record_rows(
        self, log: str, records: Sequence[Record], form: Form, *, whole: bool = False
    ) -> tuple[list[RecordRow], str]:
        """Return how *records* are shown, and why they are not shown by a schema."""
        decoded: Sequence[DecodedRecord | None] = [None] * len(records)
        reason = ""
        if form is Form.SCHEMA:
            try:
                schemas = await log_schemas(log, client=self.gatherer.client)
                decoded = await asyncio.to_thread(decode_records, log, schemas, records)
            except LogError as error:
                reason = str(error)
        rows = [
            record_row(record, form, whole=whole, decoded=row)
            for record, row in zip(records, decoded, strict=True)
        ]
        problems = [
            f"record {record.offset} is none of the schema: {row.problem}"
            for record, row in zip(records, decoded, strict=True)
            if row is not None and row.problem
        ]
        if len(problems) > 1:
            reason = f"{problems[0]}; {len(problems) - 1} more of this page are none either"
        elif problems:
            reason = problems[0]
        return rows, reason

    async def _ledgers(self, request: Request) -> Response:
        begin = _number(request, "from")
        ids, listed = await self.gatherer.ledgers(wait_s=FIRST_LOOK_S)
        shown, _ = ids_of_page(ids, begin)
        metadata = await self.gatherer.metadata_of(
            [LedgerId(each) for each in shown], wait_s=FIRST_LOOK_S
        )
        page = ledger_list(ids, begin, metadata, listed=listed)
        return self.page(request, "ledgers.html", here="ledgers", page=page, begin=begin or "")

    async def _ledger(self, request: Request) -> Response:
        ledger = LedgerId(_number(request, "id"))
        page = ledger_page(ledger, await self.gatherer.metadata(ledger))
        return self.page(request, "ledger.html", here="ledgers", page=page)

    # Streams.

    def _live(self, part: Callable[[Request], Awaitable[str]]) -> Handler:
        async def handler(request: Request) -> Response:
            return self.streams.response(live(self.gatherer, lambda: _part_of(part, request)))

        return handler

    async def _tail(self, request: Request) -> Response:
        log = check_name(request.query_params.get("log", ""))
        begin = position_of(request.query_params.get("from", "end"), "from")
        return self.streams.response(tail(self.gatherer, log, begin, self._shown(request, log)))

    async def _search(self, request: Request) -> Response:
        log = check_name(request.query_params.get("log", ""))
        begin = position_of(request.query_params.get("from", "start"), "from")
        end = position_of(request.query_params.get("to", "end"), "to")
        text = request.query_params.get("text", "")
        found = search(self.gatherer, log, begin, end, text, self._shown(request, log))
        return self.streams.response(found)

    async def _verify(self, request: Request) -> Response:
        ledger = LedgerId(_number(request, "id"))
        row = "<tr><td>{}</td></tr>"
        found = verify(
            self.gatherer, ledger, self._verifies, lambda fault: row.format(escape(fault))
        )
        return self.streams.response(found)

    def _shown(self, request: Request, log: str) -> Callable[[Sequence[Record]], str]:
        form = form_of(request.query_params.get("as", ""))
        rows = self._templates.get_template("parts.html").module.record_rows  # type: ignore[attr-defined]
        return lambda records: str(rows([record_row(each, form) for each in records], log))

    # Who is there.

    async def _login(self, request: Request) -> Response:
        now, session = time.monotonic(), secrets.token_urlsafe(32)
        if request.method in ("GET", "HEAD"):
            where, trouble = _own_path(request.query_params.get("next", "/")), ""
            once = request.query_params.get("token")
            if once and request.method == "GET":
                if self.sessions.log_in_once(once, session, now):
                    return self._logged_in(session, where)
                trouble = "That address worked once, and was used; log in with the token."
            return self.page(request, "login.html", here="", next=where, trouble=trouble)
        form = await form_fields(request)
        where, address = _own_path(form.get("next", "/")), address_of(request)
        if not self.sessions.may_try(address, now):
            trouble = f"Too many wrong tokens came from {address}; try again in a minute."
            return self.page(
                request, "login.html", status=429, here="", next=where, trouble=trouble
            )
        if not self.sessions.log_in(form.get("token", ""), session, address, now):
            trouble = "That is not the token."
            return self.page(
                request, "login.html", status=403, here="", next=where, trouble=trouble
            )
        return self._logged_in(session, where)

    def _logged_in(self, session: str, where: str) -> Response:
        response = RedirectResponse(where, status_code=303)
        response.set_cookie(
            COOKIE,
            session,
            max_age=round(SESSION_S),
            httponly=True,
            samesite="strict",
            secure=self.access.secure,
        )
        return response

    async def _logout(self, request: Request) -> Response:
        form = await form_fields(request)
        session = self.session_of(request)
        if session is None or not self.sessions.is_form_token(session, form.get("form_token", "")):
            raise HTTPException(403, "This form is not of your session; load the page again.")
        self.sessions.log_out(session)
        response = RedirectResponse("/", status_code=303)
        response.delete_cookie(COOKIE)
        return response

    def session_of(self, request: Request) -> str | None:
        """Return the session of who asks, None if he has not logged in."""
        found = request.cookies.get(COOKIE)
        return found if self.sessions.is_known(found, time.monotonic()) else None

    # How pages are made.

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: object
    ) -> Response:
        session = self.session_of(request)
        shown = SessionShown(
            session is not None,
            "" if session is None else self.sessions.form_token(session),
            self.access.allow_changes,
        )
        uri = self.gatherer.client.store.uri
        return HTMLResponse(
            self.render(template, session=shown, uri=uri, **values), status_code=status
        )

    def render(self, template: str, **values: object) -> str:
        return self._templates.get_template(template).render(**values)

    async def _refused(self, request: Request, error: HTTPException) -> Response:
        title = "Not found" if error.status_code == 404 else "Refused"
        return self._trouble(request, title, error.detail, error.status_code)

    async def _troubled(self, request: Request, error: LogError) -> Response:
        return self._trouble(request, "That cannot be shown", str(error), 400)

    def _trouble(self, request: Request, title: str, what: str, status: int) -> Response:
        return self.page(request, "trouble.html", status=status, here="", title=title, what=what)


class Gate:
    """Every request comes through here: it is refused, or answered with our headers."""

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no lifespan and no web sockets here

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                REQUESTS.add(f"{message['status'] // 100}xx")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, access = Headers(scope=scope), self._console.access
        if host_of(headers.get("host", "")) not in access.hosts:
            return _said(421, "This console does not go by that name; see --allow-host.")
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > URL_BYTES_MAX:
            return _said(414, "The address is too long.")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _said(405, "Only GET and POST are understood.")
        follows = scope["method"] == "GET" and not scope["path"].startswith("/live/")
        if not is_own_origin(headers) and not (follows and is_followed_link(headers)):
            return _said(403, "A page of another origin asked for that; nothing is for it here.")
        changes = needs_session(scope["path"], scope["method"])
        if changes and not access.allow_changes:
            return _said(403, "This console only looks: start it with --allow-changes.")
        open_to_all = scope["path"] == "/login" or scope["path"].startswith("/static/")
        return None if open_to_all else self._stranger(scope)

    def _stranger(self, scope: Scope) -> Response | None:
        """Return what somebody is told who has not logged in; None: he has."""
        if self._console.session_of(Request(scope)) is not None:
            return None
        if scope["method"] == "POST" or scope["path"].startswith("/live/"):
            return _said(401, "Log in first.")
        where = scope["path"]
        if query := scope["query_string"].decode("ascii", "replace"):
            where = f"{where}?{query}"[:NEXT_MAX]
        return RedirectResponse(f"/login?next={quote(where)}", status_code=303)


async def _part_of(part: Callable[[Request], Awaitable[str]], request: Request) -> str:
    try:
        return await part(request)
    except LogError as error:
        return f'<p class="banner wrong">{escape(str(error))}</p>'
    except HTTPException as error:
        return f'<p class="banner wrong">{escape(error.detail)}</p>'


def _own_path(text: str) -> str:
    """Return where to go on in this console, whatever *text* says."""
    found = urlsplit(text)
    own = text.startswith("/") and not text.startswith("//") and "\\" not in text
    return text if own and not found.netloc and text.isprintable() else "/"


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "") or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= LEDGER_MAX):
        raise HTTPException(400, f"{name} is a number from 0 on.")
    return int(text)


def _said(status: int, what: str) -> Response:
    return PlainTextResponse(f"{what}\n", status_code=status)
