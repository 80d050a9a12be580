"""How much an identity, or those who use some logs, may append and read a second. Pure.

A quota is for one identity or for one log, or for all whose names begin alike, if its name ends in
an asterisk; all whom it is for share it. Of several that fit, each counts. What goes beyond is
delayed by bookies, not refused.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

from ledger.errors import DamagedMetadata, InvalidGrant, InvalidQuota, NoSuchQuota
from ledger.nodes import parse_node
from ledger.security.access import ANYTHING, Grant, Role, fits
from ledger.wire import metadata_pb2 as pb

QUOTAS: Final = "/quotas"
FORMAT_VERSION: Final = 1
QUOTAS_MAX: Final = 256
"""Each is a label of metrics."""
BYTES_S_MIN: Final = 64 * 1024
"""Less would hold a client up for minutes with a single entry."""
RATE_MAX: Final = 1 << 50


class Subject(StrEnum):
    IDENTITY = "identity"
    LOGS = "logs"


_NUMBERS: Final = {Subject.IDENTITY: pb.QUOTA_IDENTITY, Subject.LOGS: pb.QUOTA_LOGS}
_SUBJECTS: Final = {number: subject for subject, number in _NUMBERS.items()}


@dataclass(frozen=True, slots=True, order=True)
class Quota:
    """Raises `InvalidQuota` for names that can be nobody's, and rates that cannot be kept."""

    subject: Subject
    name: str
    """Of an identity, as ``KIND:NAME``, or of logs; see above for the asterisk."""
    append_bytes_s: int = 0
    """0, here and below: no limit."""
    append_entries_s: int = 0
    read_bytes_s: int = 0
    read_requests_s: int = 0

    def __post_init__(self) -> None:
        try:
            if self.subject is Subject.IDENTITY:
                Grant(self.name, Role.READER, ANYTHING)
            else:
                Grant(ANYTHING, Role.READER, self.name)
        except InvalidGrant as error:
            raise InvalidQuota(self.name, error.reason) from error
        for rate in (self.append_bytes_s, self.read_bytes_s):
            if rate and not BYTES_S_MIN <= rate <= RATE_MAX:
                raise InvalidQuota(self.name, f"{rate} bytes/s; give at least {BYTES_S_MIN}")
        for rate in (self.append_entries_s, self.read_requests_s):
            if not 0 <= rate <= RATE_MAX:
                raise InvalidQuota(self.name, f"{rate} a second; give at least 1")
        if not any(self.rates):
            raise InvalidQuota(self.name, "say how much of what; nothing is limited now")

    @property
    def rates(self) -> tuple[int, int, int, int]:
        return (
            self.append_bytes_s,
            self.append_entries_s,
            self.read_bytes_s,
            self.read_requests_s,
        )

    @property
    def of(self) -> tuple[Subject, str]:
        return self.subject, self.name

    def __str__(self) -> str:
        return f"{self.subject} {self.name}"

    def is_for(self, identity: str, log: str | None) -> bool:
        """Return whether it counts for who *identity* is, empty: not known, on *log*, None: on
        what belongs to no log."""
        if self.subject is Subject.IDENTITY:
            return bool(identity) and fits(self.name, identity)
        return self.name == ANYTHING or (log is not None and fits(self.name, log))


@dataclass(frozen=True, slots=True)
class Quotas:
    """All quotas, in order, one for each subject. Raises `InvalidQuota` if they are too many."""

    quotas: tuple[Quota, ...] = ()
    changed_by: str = field(default="", compare=False)
    """Who made the last change, as he says himself."""
    changed_ms: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        of = [each.of for each in self.quotas]
        assert of == sorted(set(of)), "in order, one for each subject"
        if len(of) > QUOTAS_MAX:
            raise InvalidQuota(
                self.quotas[-1].name, f"{QUOTAS_MAX} quotas are the most; let names share a prefix"
            )

    def with_(self, quota: Quota) -> Self:
        """Return quotas with *quota*, in place of one for the same. Raises `InvalidQuota`."""
        others = [each for each in self.quotas if each.of != quota.of]
        return replace(self, quotas=tuple(sorted([*others, quota])))

    def without(self, subject: Subject, name: str) -> Self:
        """Raises `NoSuchQuota`."""
        left = tuple(each for each in self.quotas if each.of != (subject, name))
        if left == self.quotas:
            raise NoSuchQuota(f"{subject} {name}")
        return replace(self, quotas=left)

    def encode(self) -> bytes:
        node = pb.QuotasNode(
            version=FORMAT_VERSION, changed_by=self.changed_by, changed_ms=self.changed_ms
        )
        for each in self.quotas:
            node.quotas.add(
                subject=_NUMBERS[each.subject],
                name=each.name,
                append_bytes_s=each.append_bytes_s,
                append_entries_s=each.append_entries_s,
                read_bytes_s=each.read_bytes_s,
                read_requests_s=each.read_requests_s,
            )
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises `DamagedMetadata`, also for what a newer program wrote."""
        node = pb.QuotasNode()
        parse_node(node, value, QUOTAS, version=FORMAT_VERSION)
        try:
            found = {
                quota.of: quota
                for each in node.quotas
                for quota in [
                    Quota(
                        _SUBJECTS[each.subject],
                        each.name,
                        each.append_bytes_s,
                        each.append_entries_s,
                        each.read_bytes_s,
                        each.read_requests_s,
                    )
                ]
            }
            return cls(tuple(sorted(found.values())), node.changed_by, node.changed_ms)
        except (KeyError, InvalidQuota) as error:
            raise DamagedMetadata(QUOTAS, f"it has a quota that means nothing: {error}") from error
