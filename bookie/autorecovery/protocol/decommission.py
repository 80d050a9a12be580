"""Emptying one bookie for good: it gets nothing more, all it holds is copied, its name retired.

    look -> [check that there is room] -> announce -> read-only -> scan and mark, until two scans in
    a row, begun after it was quiet, find nothing -> once it is stopped: retire its name, last

*Quiet* is a bookie that is read-only or not registered: no writer can put a ledger there any more.
The bookie serves reads meanwhile, and is a source of its own copies. Everything that counts is in
the metadata store, so the command may be interrupted at any moment, and run again.

Invariants:
    a cookie is retired in the version that was seen before a scan that found nothing
    a name is retired, never free: a bookie that slept meanwhile may acknowledge entries under it
    no scan counts that began before the bookie was quiet, or met metadata that cannot be read
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ledger.errors import AccessDenied, BookieRefused, LogError, TransportMismatch
from ledger.ids import LedgerId
from ledger.protocol.procedure import Action, Steps, Wait

PAUSE_S: Final = 5.0
CLEAN_SCANS: Final = 2


# Answers.


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSeen:
    is_known: bool
    """It has a cookie, and is not emptied and retired already."""
    version: int
    """Of the cookie."""
    is_registered: bool
    is_read_only: bool
    is_leaving: bool
    """It was announced that it is to be emptied."""
    others_writable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgersScanned:
    naming: int
    """Ledgers with a fragment that names the bookie."""
    naming_bytes: int
    """What it should hold of those that are CLOSED; see `weight_of`."""
    unreadable: int
    """Ledgers whose metadata cannot be read."""
    widest: int
    """Largest ensemble of those that name it."""


@dataclass(frozen=True, slots=True)
class MarksSeen:
    naming: int
    """Marks that name the bookie."""
    hopeless: tuple[LedgerId, ...]
    """Of them, ledgers with entries that no bookie gave in the last attempt."""
    idle_why: str = ""
    """Why no worker repairs them; empty: one does, or there are none."""


class DecommissionOutcome(Enum):
    RETIRED = "nothing names it, and its name is retired: no bookie ever has it again"
    EMPTY = "nothing names it; stop it, then its name can be retired"
    UNKNOWN = "no bookie of that name is known, or its name is retired already"
    TOO_FEW = "too few other bookies"
    REFUSED = "it does not become read-only"


@dataclass(frozen=True, slots=True)
class DecommissionEnd:
    outcome: DecommissionOutcome
    why: str = ""


# Actions.


@dataclass(frozen=True, slots=True)
class LookAtBookie(Action[BookieSeen]):
    """Read its cookie, its registration, and what was announced of it."""


@dataclass(frozen=True, slots=True)
class ScanLedgers(Action[LedgersScanned]):
    """Read the metadata of all ledgers, and mark those that name the bookie if *mark*."""

    mark: bool


@dataclass(frozen=True, slots=True)
class ReadMarks(Action[MarksSeen]):
    """Read all marks."""


@dataclass(frozen=True, slots=True)
class Announce(Action[None]):
    """Record that the bookie is to be emptied."""


@dataclass(frozen=True, slots=True)
class TurnReadOnly(Action[None]):
    """Ask the bookie to be read-only from now on. Raises `AccessDenied`, `BookieRefused` and
    `TransportMismatch` if it will not."""


@dataclass(frozen=True, slots=True)
class Retire(Action[bool]):
    """Retire its name if its cookie is at *version*, and the bookie is not registered. Answer:
    whether that was so."""

    version: int


@dataclass(frozen=True, slots=True)
class Withdraw(Action[None]):
    """Take the announcement back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Action[None]):
    """Show how far it is."""

    ledgers_left: int
    bytes_left: int
    unreadable: int
    marked: int
    hopeless: tuple[LedgerId, ...]
    trouble: str
    """What was in the way last; empty: nothing."""


def empty(*, pause_s: float = PAUSE_S) -> Steps[DecommissionEnd]:
    """Empty the bookie; errors of the metadata store and of the bookie are reported, and tried
    again."""
    clean = 0
    """Scans in a row that found nothing."""
    error_met = ""
    while True:
        try:
            bookie = yield from LookAtBookie()
            if not bookie.is_known:
                return (yield from _end_of_unknown(bookie))
            if not bookie.is_leaving:
                refusal = yield from _announce(bookie)
                if refusal is not None:
                    return refusal
                continue
            if bookie.is_registered and not bookie.is_read_only:
                clean = 0
                refusal = yield from _turn_read_only()
                if refusal is not None:
                    return refusal
            else:
                is_clean = yield from _scan(error_met)
                clean, error_met = (clean + 1 if is_clean else 0), ""
                if clean >= CLEAN_SCANS:
                    if bookie.is_registered:
                        return DecommissionEnd(DecommissionOutcome.EMPTY)
                    if (yield from Retire(bookie.version)):
                        yield from Withdraw()
                        return DecommissionEnd(DecommissionOutcome.RETIRED)
                    clean = 0  # its cookie has changed: it was started again
                    continue
                if clean:
                    continue
        except LogError as error:
            clean, error_met = 0, str(error)
        yield from Wait(pause_s)


def _end_of_unknown(bookie: BookieSeen) -> Steps[DecommissionEnd]:
    if not bookie.is_leaving:
        return DecommissionEnd(DecommissionOutcome.UNKNOWN)
    yield from Withdraw()  # of a run that was interrupted once it had retired the name
    return DecommissionEnd(DecommissionOutcome.RETIRED)


def _announce(bookie: BookieSeen) -> Steps[DecommissionEnd | None]:
    """Announce that it is to be emptied; return why not, if there is no room."""
    scanned = yield from ScanLedgers(mark=False)
    others = bookie.others_writable
    if scanned.naming and others < scanned.widest:
        why = f"ledgers on it need {scanned.widest} bookies, and {others} others are writable"
        return DecommissionEnd(DecommissionOutcome.TOO_FEW, why)
    yield from Announce()
    return None


def _turn_read_only() -> Steps[DecommissionEnd | None]:
    try:
        yield from TurnReadOnly()
    except (AccessDenied, BookieRefused, TransportMismatch) as error:
        return DecommissionEnd(DecommissionOutcome.REFUSED, str(error))
    return None  # its registration will say so


def _scan(error_met: str) -> Steps[bool]:
    """Scan, mark and report; return whether nothing is left of the bookie."""
    scanned = yield from ScanLedgers(mark=True)
    marks = yield from ReadMarks()
    yield from Report(
        ledgers_left=scanned.naming,
        bytes_left=scanned.naming_bytes,
        unreadable=scanned.unreadable,
        marked=marks.naming,
        hopeless=marks.hopeless,
        trouble=error_met or marks.idle_why,
    )
    return not (scanned.naming or scanned.unreadable or marks.naming)
