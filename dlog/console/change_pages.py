"""The pages on which something is changed, and the only ones: who may is asked in one place.

A change is begun by a POST to ``/change/KIND`` and stopped by one to ``/stop``. Both, and the pages
that ask, are for sessions of a console that allows changes (`refusal`); both POSTs must carry the
session's form token.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from dlog.aio.store import ManifestNode
from dlog.changes import LOG, Change, last_changes
from dlog.console.changes import KINDS, Kind, asked, ordered
from dlog.console.poller import Gatherer
from dlog.console.request_guard import BODY_BYTES_MAX, FIELDS_MAX, Sessions
from dlog.console.views.changes import change_row, work_row
from dlog.console.works import NotBegun, Works
from dlog.errors import NoSuchLog
from ledger.errors import LogError
from ledger.process import this_process

FORM_S: Final = 10.0
"""A form may take so long to come."""
CHANGES_SHOWN: Final = 50
SEGMENTS_READ: Final = 150
"""Of the log of changes, the newest: each change has a segment, two if operators met."""
READ_S: Final = 5.0


async def form_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form, each once. Raises `HTTPException` for one that is too large, or
    takes too long."""
    body = b""
    try:
        async with asyncio.timeout(FORM_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise HTTPException(413, "That form is too large.")
    except TimeoutError:
        raise HTTPException(408, "That form did not come in time.") from None
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise HTTPException(400, "That is no form of this console.") from None
    return {name: values[0] for name, values in fields.items()}


def address_of(request: Request) -> str:
    return request.client.host if request.client is not None else "an unknown address"


class Pages(Protocol):
    """The maker of pages, with the sessions of users."""

    gatherer: Gatherer
    sessions: Sessions
    works: Works

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: object
    ) -> Response: ...

    def render(self, template: str, **values: object) -> str: ...

    def session_of(self, request: Request) -> str | None: ...


def needs_session(path: str, method: str) -> bool:
    """Return whether a request may change something, or asks what a change would do."""
    entering = path in ("/login", "/logout")
    return path.startswith("/change/") or (method == "POST" and not entering)


@dataclass(frozen=True, slots=True)
class ChangePages:
    pages: Pages

    def routes(self, live: Callable[..., Callable[[Request], object]]) -> Sequence[Route]:
        return (
            Route("/changes", self._changes),
            Route("/live/changes", live(self._changes_part)),
            Route("/change/{kind}", self._ask, methods=["GET"]),
            Route("/change/{kind}", self._begin, methods=["POST"]),
            Route("/stop", self._stop, methods=["POST"]),
            Route("/work", self._work),
            Route("/live/work", live(self._work_part)),
        )

    async def _ask(self, request: Request) -> Response:
        kind = _kind_of(request)
        return await self._asked(request, kind, dict(request.query_params))

    async def _asked(
        self,
        request: Request,
        kind: Kind,
        given: dict[str, str],
        *,
        trouble: str = "",
        status: int = 200,
    ) -> Response:
        found = await asked(kind, self.pages.gatherer, given)
        return self.pages.page(
            request,
            "change.html",
            status=status,
            here="logs" if kind.subject == "log" else "cluster",
            asked=found,
            kind=kind,
            name=request.path_params["kind"],
            subject=given.get(kind.subject, ""),
            trouble=trouble,
        )

    async def _begin(self, request: Request) -> Response:
        given = await self._confirmed(request)
        kind = _kind_of(request)
        try:
            order = ordered(kind, self.pages.gatherer, given)
            place = f"browser at {address_of(request)}, console {this_process()}"
            work = self.pages.works.begin(order, place=place)
        except NotBegun as error:
            return await self._asked(request, kind, given, trouble=str(error), status=409)
        return RedirectResponse(f"/work?number={work.number}", status_code=303)

    async def _stop(self, request: Request) -> Response:
        number = (await self._confirmed(request)).get("number", "")
        self.pages.works.stop(number)
        return RedirectResponse(f"/work?number={_checked(number)}", status_code=303)

    async def _confirmed(self, request: Request) -> dict[str, str]:
        """Return the fields of a form that is one of this session's. Raises `HTTPException`."""
        given, session = await form_fields(request), self.pages.session_of(request)
        sessions = self.pages.sessions
        if session is None or not sessions.is_form_token(session, given.pop("form_token", "")):
            raise HTTPException(403, "This form is not of your session; load the page again.")
        return given

    async def _work(self, request: Request) -> Response:
        return self.pages.page(request, "work.html", here="changes", work=self._found(request))

    async def _work_part(self, request: Request) -> str:
        return self.pages.render("work_live.html", work=self._found(request))

    def _found(self, request: Request) -> object:
        work = self.pages.works.find(request.query_params.get("number", ""))
        if work is None:
            raise HTTPException(404, "That change is not remembered here; see the log of changes.")
        return work_row(work)

    async def _changes(self, request: Request) -> Response:
        trouble, found = "", list[Change]()
        try:
            async with asyncio.timeout(READ_S):
                found = await self._written()
        except TimeoutError:
            trouble = f"reading the log of changes took longer than {READ_S:g} s"
        except LogError as error:
            trouble = str(error)
        return self.pages.page(
            request,
            "changes.html",
            here="changes",
            works=self._rows(),
            written=[change_row(each) for each in reversed(found)],
            trouble=trouble,
            log=LOG,
        )

    async def _changes_part(self, _request: Request) -> str:
        return self.pages.render("works_live.html", works=self._rows())

    def _rows(self) -> Sequence[object]:
        return [work_row(each) for each in self.pages.works.newest]

    async def _written(self) -> list[Change]:
        """Return the last changes by anybody."""
        client = self.pages.gatherer.client
        try:
            manifest, _ = await ManifestNode(client.store, LOG).read()
        except NoSuchLog:
            return []
        read = manifest.segments[-SEGMENTS_READ:]
        since_ms = read[0].created_ms if len(manifest.segments) > len(read) else None
        return await last_changes(client, since_ms=since_ms, changes_max=CHANGES_SHOWN)


def _kind_of(request: Request) -> Kind:
    kind = KINDS.get(request.path_params["kind"])
    if kind is None:
        raise HTTPException(404, "There is no such change.")
    return kind


def _checked(number: str) -> str:
    return number if number.isalnum() and number.isascii() and len(number) <= 32 else ""
