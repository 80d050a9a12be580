"""How bookies that are registered do, as each of them says: disks, clock, version, and when its
certificate expires. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dlog.health.findings import Finding, Severity, named
from ledger.values import counted
from ledger.wire import bookie_pb2 as pb

DAY_S: Final = 86_400.0
SOON_S: Final = 30 * DAY_S
SOON_SHARE: Final = 1 / 3
"""Of how long a certificate is valid: one of a week is not about to expire all its life."""
FILLED_SHARE: Final = 0.9
"""A disk that is fuller is told of; the bookie itself stops at 95 %."""
CLOCK_S: Final = 2.0
"""Retention by age, and times that people read, are wrong by as much as clocks are."""


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when, in seconds since 1970."""

    begins_s: float
    expires_s: float

    def left_s(self, now_s: float) -> float:
        return self.expires_s - now_s

    def is_soon(self, now_s: float) -> bool:
        """Return True if it should have been renewed by now."""
        whole_s = self.expires_s - self.begins_s
        return self.left_s(now_s) < min(SOON_S, whole_s * SOON_SHARE)

    def __str__(self) -> str:
        return f"{datetime.fromtimestamp(self.expires_s, UTC):%Y-%m-%d %H:%M} UTC"


def expiry_finding(whose: str, validity: Validity, now_s: float) -> Finding | None:
    """Return what is to be said of the certificate of *whose*: "bookie b1", "this process"."""
    left_s = validity.left_s(now_s)
    if left_s <= 0:
        return Finding(
            Severity.CRITICAL,
            "certificate-expired",
            f"the certificate of {whose} expired on {validity}: no peer accepts it",
            "Put a renewed one in its place, with its key; no restart is needed.",
        )
    if not validity.is_soon(now_s):
        return None
    days = left_s / DAY_S
    when = counted(round(days), "day") if days >= 2 else counted(round(left_s / 3600), "hour")
    return Finding(
        Severity.NOTE,
        "certificate-expires",
        f"the certificate of {whose} expires in {when}, on {validity}",
        "Put a renewed one in its place, with its key; no restart is needed.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    bookie: str
    address: str
    operator_address: str = ""
    """Empty: it takes no orders."""
    reached: bool = True
    """It answered a request as clients send it."""
    silent: str = ""
    """Why it did not answer as operators ask it."""
    status: pb.StatusReply | None = None
    answered_s: float = 0.0
    """Duration of that request."""
    clock_off_s: float | None = None
    """Its clock minus the local one; None: it did not report it."""

    @property
    def certificate(self) -> Validity | None:
        """None: it has none, or did not say."""
        if self.status is None or not self.status.HasField("certificate"):
            return None
        own = self.status.certificate
        return Validity(own.begins_s, own.expires_s)

    @property
    def clock_differs(self) -> bool:
        """Whether for sure: when within the time of the answer it looked is not known."""
        off_s = self.clock_off_s
        return off_s is not None and abs(off_s) - self.answered_s / 2 > CLOCK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersFacts:
    version: str
    """Of the program that asks."""
    servers: tuple[ServerFacts, ...]
    left_out: int = 0
    now_s: float = 0.0
    """When they were asked, since 1970."""
    own_certificate: Validity | None = None
    """Of the program that asks; None: it has none."""

    def findings(self) -> Iterator[Finding]:
        yield from self._of_certificates()
        for server in self.servers:
            yield from _findings_of_reach(server)
            if server.status is not None:
                yield from _findings_of_state(server.bookie, server.status)
            if server.clock_differs:
                yield _clock_finding(server)
        versions = self._versions()
        if len({*versions, self.version}) > 1:
            running = "; ".join(f"{version}: {named(who)}" for version, who in versions.items())
            yield Finding(
                Severity.NOTE,
                "versions-differ",
                f"bookies run versions that differ from each other or from this program "
                f"({self.version}): {running}",
                "Finish the update, one bookie after the other.",
            )

    def _of_certificates(self) -> Iterator[Finding]:
        found = [(f"bookie {server.bookie}", server.certificate) for server in self.servers]
        for whose, validity in (("this process", self.own_certificate), *found):
            finding = None if validity is None else expiry_finding(whose, validity, self.now_s)
            if finding is not None:
                yield finding

    def _next_to_expire(self) -> str:
        valid = [server.certificate for server in self.servers if server.certificate is not None]
        if not valid:
            return ""
        return f"; the next certificate expires on {min(valid, key=lambda each: each.expires_s)}"

    def _versions(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for server in self.servers:
            if server.status is not None:
                found.setdefault(server.status.version, []).append(server.bookie)
        return dict(sorted(found.items()))

    def summary(self) -> str:
        reached = sum(server.reached for server in self.servers)
        told = sum(each.status is not None for each in self.servers)
        fullest = max((used for each in self.servers for used in _used(each.status)), default=None)
        full = "" if fullest is None else f"; the fullest disk is at {100 * fullest:.0f} %"
        all_ = len(self.servers)
        reach = f"{reached} of {all_} reached by clients, {told} by operators"
        return f"{reach}{full}{self._next_to_expire()}"

    def unseen(self) -> Iterator[str]:
        if self.left_out:
            yield f"the state of {counted(self.left_out, 'more bookie')}"

    def to_dict(self) -> Mapping[str, object]:
        return {
            "version": self.version,
            "certificate_expires_s": self.own_certificate and self.own_certificate.expires_s,
            "bookies": [
                {
                    "bookie": server.bookie,
                    "address": server.address,
                    "operator_address": server.operator_address,
                    "reached_by_clients": server.reached,
                    "reached_by_operators": server.status is not None,
                    "version": "" if server.status is None else server.status.version,
                    "clock_off_s": server.clock_off_s,
                    "answered_s": server.answered_s,
                    "fullest_disk": max(_used(server.status), default=None),
                    "certificate_expires_s": server.certificate and server.certificate.expires_s,
                }
                for server in self.servers
            ],
        }


def _findings_of_reach(each: ServerFacts) -> Iterator[Finding]:
    if not each.reached:
        yield Finding(
            Severity.WARNING,
            "bookie-unreachable",
            f"bookie {each.bookie} is registered, but does not answer clients at {each.address} "
            "from here",
            "If it was just killed, its registration expires in a moment. Else look for a "
            "firewall, for an address that only its own machine knows (--advertise), or for a "
            "process that hangs.",
            bookies=(each.bookie,),
        )
    elif each.silent:
        yield Finding(
            Severity.NOTE,
            "no-orders",
            f"bookie {each.bookie} serves clients, but its state is unknown: {each.silent}",
            "Make its --operator-port reachable from here, or query it on its own machine.",
        )


def _findings_of_state(bookie: str, status: pb.StatusReply) -> Iterator[Finding]:
    for directory in status.ledger_directories:
        if directory.failure:
            yield Finding(
                Severity.WARNING,
                "directory-failed",
                f"bookie {bookie} only reads from {directory.path}: {directory.failure}",
                "Replace the disk, or start the bookie again once it works.",
            )
    for journal in status.journals:
        if journal.full:
            yield Finding(
                Severity.WARNING,
                "journal-full",
                f"bookie {bookie} has no space for its journal {journal.path}",
                "Free space there; nothing that was acknowledged is lost.",
            )
    for usage in status.directories:
        if usage.total_bytes and 1 - usage.free_bytes / usage.total_bytes > FILLED_SHARE:
            share = 100 * (1 - usage.free_bytes / usage.total_bytes)
            yield Finding(
                Severity.WARNING,
                "disk-filling",
                f"{usage.path} of bookie {bookie} is {share:.0f} % full",
                "Add bookies, shorten retention, or look for a consumer that holds it up; 'dlog "
                f"bookie compact {bookie}' frees dead data.",
            )
    for alarm in status.collector.alarms:
        yield Finding(
            Severity.WARNING,
            "deletions-stuck",
            f"bookie {bookie} keeps {counted(status.collector.waiting, 'ledger')} that may be "
            f"garbage: {alarm.reason}",
            "First find out what happened to the metadata store; then 'dlog bookie gc "
            f"{bookie} --allow-deletions N' deletes them.",
        )
    for warning in status.warnings:
        yield Finding(
            Severity.WARNING,
            "bookie-warns",
            f"bookie {bookie} warns: {warning}",
            f"'dlog bookie status {bookie}' shows its whole state.",
        )


def _clock_finding(each: ServerFacts) -> Finding:
    off_s = each.clock_off_s or 0.0
    return Finding(
        Severity.WARNING,
        "clock-differs",
        f"the clock of bookie {each.bookie} is {abs(off_s):.1f} s "
        f"{'ahead of' if off_s > 0 else 'behind'} the local clock",
        "Synchronize all machines with a time server. No record is in danger: retention by age "
        "and the times in reports are wrong by as much.",
    )


def _used(status: pb.StatusReply | None) -> Iterator[float]:
    for usage in () if status is None else status.directories:
        if usage.total_bytes:
            yield 1 - usage.free_bytes / usage.total_bytes
