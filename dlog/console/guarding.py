"""Who may ask the console for what, and what a browser is told to allow.

A page of another origin must reach nothing here: not by a form (SameSite, token in each form, the
origin is looked at), not by a name that it points at this address (the host is looked at), not in
a frame. Payloads and names never become markup: templates escape, and the policy below forbids
scripts and styles but our own files.
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
"""Wrong tokens from one address in `FAILURES_S` seconds; then nobody there may try for as long."""
FAILURES_S: Final = 60.0
FAILURES_KNOWN_MAX: Final = 1_000
"""Wrong tokens that are remembered, of all addresses."""
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
    """Return whether a request that changes something comes from a page of ours: what the browser
    says of it must not say otherwise."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


class Sessions:
    """Who has shown the token. *secret* and ids of sessions are random and given."""

    def __init__(self, token: str, secret: bytes) -> None:
        self._token = hashlib.sha256(token.encode()).digest()
        self._secret = secret
        self._known: OrderedDict[str, float] = OrderedDict()
        self._failures: deque[tuple[float, str]] = deque(maxlen=FAILURES_KNOWN_MAX)
        """When, and from which address."""

    def may_try(self, address: str, now: float) -> bool:
        lately = [each for at, each in self._failures if now - at < FAILURES_S]
        return lately.count(address) < FAILURES_MAX

    def log_in(self, token: str, session: str, address: str, now: float) -> bool:
        """Let *session* in if the *token* is right; takes as long if it is wrong."""
        given = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        if not hmac.compare_digest(given, self._token):
            self._failures.append((now, address))
            return False
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
