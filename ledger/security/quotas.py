"""How much an identity, or those who use some logs, may append and read a second. Pure.

A quota is for one identity or for one log, or for all whose names begin alike, if its name ends in
an asterisk; all whom it is for share it. Of several that fit, each counts. What goes beyond is
delayed by bookies, and by gateways for Kafka's clients, not refused.

Each quota is a few buckets. A bucket is filled at its rate, up to what fits in `BURST_NS`. What
came is drawn from it in any case, also more than is there; who drew waits until the debt is paid,
and whoever draws later waits longer. All arithmetic is with integers, so nothing is lost.

Invariant: of what is drawn in any T seconds by those who wait as they are told, all but the last
drawing fit into the rate, times T and the burst.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

from ledger.errors import DamagedMetadata, InvalidGrant, InvalidQuota, NoSuchQuota
from ledger.nodes import parse_node
from ledger.security.access import ANYTHING, WHO_KINDS, Grant, Role, check_who, fits
from ledger.wire import metadata_pb2 as pb

QUOTAS: Final = "/quotas"
FORMAT_VERSION: Final = 1
CLIENT_KIND: Final = "client"
"""Of an identity that only quotas know: the name by which a client of Kafka's calls itself, where
nobody is known."""
QUOTAS_MAX: Final = 256
"""Each is a label of metrics."""
BYTES_S_MIN: Final = 64 * 1024
"""Less would hold a client up for minutes with a single entry."""
RATE_MAX: Final = 1 << 50
NS: Final = 1_000_000_000
BURST_NS: Final = NS


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
                check_who(self.name, (*WHO_KINDS, CLIENT_KIND))
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


class Bucket:
    __slots__ = ("_due", "rate")

    def __init__(self, rate: int) -> None:
        """*rate*: units a second, not 0."""
        self.rate = rate
        self._due = -BURST_NS * rate
        """When all is paid, in nanoseconds times rate; at `BURST_NS` ago or before: it is full."""

    def draw(self, amount: int, now_ns: int) -> None:
        full = (now_ns - BURST_NS) * self.rate
        self._due = max(self._due, full) + amount * NS

    def wait_ns(self, now_ns: int) -> int:
        """Return how long it takes until the debt is paid; 0: there is none."""
        return max(0, -(-self._due // self.rate) - now_ns)

    def at_rate(self, rate: int) -> "Bucket":
        """Return a bucket of another rate, that is in debt for as long."""
        other = Bucket(rate)
        other._due = self._due * rate // self.rate
        return other


@dataclass(slots=True)
class QuotaBuckets:
    """The buckets of one quota; None: no limit."""

    quota: Quota
    append_bytes: Bucket | None
    append_entries: Bucket | None
    read_bytes: Bucket | None
    read_requests: Bucket | None

    @classmethod
    def of(cls, quota: Quota, before: "QuotaBuckets | None") -> "QuotaBuckets":
        old = (None,) * 4 if before is None else before.buckets
        return cls(quota, *(_bucket(rate, was) for rate, was in zip(quota.rates, old, strict=True)))

    @property
    def buckets(self) -> tuple[Bucket | None, ...]:
        return self.append_bytes, self.append_entries, self.read_bytes, self.read_requests


def _bucket(rate: int, before: Bucket | None) -> Bucket | None:
    if not rate:
        return None
    return Bucket(rate) if before is None else before.at_rate(rate)


class QuotaTable:
    """All quotas that are in force in a process, and what is drawn from them."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether there is any quota: all that is looked at if there is none."""
        self.quotas = Quotas()
        self.generation = 0
        """Counts changes of quotas, and of what else they depend on."""
        self.delayed_ns = Counter[str]()
        """By quota: for how long clients were held up."""
        self._purses: list[QuotaBuckets] = []

    def learn_quotas(self, quotas: Quotas) -> None:
        before = {each.quota.of: each for each in self._purses}
        self._purses = [QuotaBuckets.of(each, before.get(each.of)) for each in quotas.quotas]
        self.quotas, self.is_on = quotas, bool(quotas.quotas)
        self.delayed_ns = Counter({str(one): self.delayed_ns[str(one)] for one in quotas.quotas})
        self.generation += 1

    def purses(self, identity: str, log: str | None) -> tuple[QuotaBuckets, ...]:
        return tuple(each for each in self._purses if each.quota.is_for(identity, log))
