"""Who may ask the console for what, and what a browser is told to allow.

A page of another origin must reach nothing here: not by a form (SameSite, token in each form, the
origin is looked at), not by an image, a script or a stream (what browsers say of the request is
looked at, and the origin), not by a name that it points at this address (the host is looked at),
not in a frame. Nobody sees anything without a login, also on this machine, which others use too.
Payloads and names never become markup: templates escape, and the policy below forbids scripts and
styles but our own files.
"""

import hashlib
import hmac
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

COOKIE: Final = "dlog_console"
SESSIONS_MAX: Final = 100
SESSION_S: Final = 12 * 3600.0
FAILURES_MAX: Final = 10
"""Wrong tokens from one address in `FAILURES_S` seconds; then nobody there may try for as long.
This machine's own address is everybody's here: the right token lets in from it at any time."""
FAILURES_S: Final = 60.0
ADDRESSES_MAX: Final = 1_000
"""From which wrong tokens came that are remembered."""
BODY_BYTES_MAX: Final = 16 * 1024
"""Of a request."""
FIELDS_MAX: Final = 50
"""Of a form."""
TOKEN_CHARACTERS_MIN: Final = 16
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def host_of(header: str) -> str:
    """Return the name in a Host header, lower case, without its port; "" if there is none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def is_own_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from a page of ours, or from nobody's: what the browser says
    of it must not say otherwise."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def is_followed_link(headers: Mapping[str, str]) -> bool:
    """Return whether somebody follows a link of another page: then this console's page takes the
    place of that one, which sees nothing of it, and the browser sends no session along."""
    return (
        headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and "origin" not in headers
    )


class Sessions:
    """Who has shown the token. *secret* and ids of sessions are random and given."""

    def __init__(self, token: str, secret: bytes, *, once: str = "") -> None:
        """*once*: a token that lets in one session; empty: there is none."""
        self._token = _digest(token)
        self._once = _digest(once) if once else None
        self._secret = secret
        self._known: OrderedDict[str, float] = OrderedDict()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        """When, by address."""

    def may_try(self, address: str, now: float) -> bool:
        lately = [at for at in self._failures.get(address, ()) if now - at < FAILURES_S]
        return len(lately) < FAILURES_MAX or address in LOOPBACK

    def log_in(self, token: str, session: str, address: str, now: float) -> bool:
        """Let *session* in if the *token* is right; takes as long if it is wrong."""
        given = _digest(token)
        if not hmac.compare_digest(given, self._token):
            self._failures.setdefault(address, deque(maxlen=FAILURES_MAX)).append(now)
            self._failures.move_to_end(address)
            if len(self._failures) > ADDRESSES_MAX:
                self._failures.popitem(last=False)
            return False
        return self._begin(session, now)

    def log_in_once(self, token: str, session: str, now: float) -> bool:
        """Let *session* in if *token* is the one that works once, and nobody has used it."""
        if self._once is None or not hmac.compare_digest(_digest(token), self._once):
            return False
        self._once = None
        return self._begin(session, now)

    def _begin(self, session: str, now: float) -> bool:
        self._known[session] = now
        while len(self._known) > SESSIONS_MAX:
            self._known.popitem(last=False)
        return True

    def is_known(self, session: str | None, now: float) -> bool:
        began = self._known.get(session or "")
        return began is not None and now - began < SESSION_S

    def log_out(self, session: str | None) -> None:
        self._known.pop(session or "", None)

    def form_token(self, session: str) -> str:
        """Return what each form of *session* carries, which no other page can know."""
        return hmac.new(self._secret, session.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, session: str, given: str) -> bool:
        return hmac.compare_digest(self.form_token(session).encode(), given.encode())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
