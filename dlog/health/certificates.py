"""When certificates expire: those of bookies, and that of the process that asks. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dlog.health.signs import Gravity, Sign
from ledger.values import counted

DAY_S: Final = 86_400.0
SOON_S: Final = 30 * DAY_S
SOON_SHARE: Final = 1 / 3
"""Of how long a certificate is valid: one of a week is not about to expire all its life."""


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when, in seconds since 1970."""

    begins_s: float
    expires_s: float

    def left_s(self, now_s: float) -> float:
        return self.expires_s - now_s

    def is_soon(self, now_s: float) -> bool:
        """Whether it should have been renewed by now."""
        whole_s = self.expires_s - self.begins_s
        return self.left_s(now_s) < min(SOON_S, whole_s * SOON_SHARE)

    def __str__(self) -> str:
        return f"{datetime.fromtimestamp(self.expires_s, UTC):%Y-%m-%d %H:%M} UTC"


def expiry_sign(whose: str, validity: Validity, now_s: float) -> Sign | None:
    """Return what is to be said of the certificate of *whose*: "bookie b1", "this process"."""
    left_s = validity.left_s(now_s)
    if left_s <= 0:
        return Sign(
            Gravity.GRAVE,
            "certificate-expired",
            f"the certificate of {whose} expired on {validity}: nobody lets it in, nor uses it",
            "Put a renewed one in its place, with its key; no restart is needed.",
        )
    if not validity.is_soon(now_s):
        return None
    days = left_s / DAY_S
    when = counted(round(days), "day") if days >= 2 else counted(round(left_s / 3600), "hour")
    return Sign(
        Gravity.NOTE,
        "certificate-expires",
        f"the certificate of {whose} expires in {when}, on {validity}",
        "Put a renewed one in its place, with its key; no restart is needed.",
    )
