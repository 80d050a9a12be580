"""Who may do what: grants, what they allow, and how the metadata store keeps them. Pure.

A grant gives an identity a role, for logs or for the whole cluster. What no grant allows is
refused; grants only add up, and none takes away what another one gives.

    reader    reads the logs
    writer    reads, appends to, takes over and recovers the logs
    bookie    reads, fences and lists everything, and copies what is settled, as repair does
    operator  the same, and gives bookies orders

Both names of a grant, who and which logs, are exact unless they end in an asterisk, which stands
for anything. So no grant for the log `orders` opens `orders-archive` by accident. Ledgers that
belong to no log are opened by `*` alone.

Logs of dlog's own have names that begin with an underscore. Operators append to them, as each of
their changes is written down there; a writer only by a grant that names them, not by `*`.

A certificate that names a bookie (`dlog:bookie:NAME`) is one: repair needs no grant for it.

Clients of a gateway for Kafka may also be known by a password (`user:NAME`) or a token of an OpenID
provider (`oidc:SUBJECT`). To bookies nobody is known so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Final, Self

from ledger.errors import DamagedMetadata, InvalidGrant, NoSuchGrant
from ledger.nodes import parse_node
from ledger.security.settings import NAME_KINDS
from ledger.wire import metadata_pb2 as pb

ACCESS: Final = "/access"
FORMAT_VERSION: Final = 1
ANYTHING: Final = "*"
OWN_LOGS: Final = "_"
"""What names of logs begin with that dlog writes itself."""
GRANTS_MAX: Final = 4096
GRANTS_BYTES_MAX: Final = 512 * 1024
"""Of all grants, encoded: every bookie reads them with each change."""
NAME_BYTES_MAX: Final = 1024
WHO_KINDS: Final = (*map(str, NAME_KINDS), "user", "oidc")


class Role(StrEnum):
    READER = "reader"
    WRITER = "writer"
    BOOKIE = "bookie"
    OPERATOR = "operator"

    @property
    def is_of_cluster(self) -> bool:
        """Whether it is granted for everything, and not for some logs."""
        return self in {Role.BOOKIE, Role.OPERATOR}


class Permission(IntEnum):
    """What a bookie is asked to do. What is allowed is a sum of them."""

    READ = 1
    """Entries, and the last add confirmed; also to wait for them."""
    ADD = 2
    RECOVER = 4
    """Fence a ledger, and add what a repair copies, as far as it is settled. What a recovery adds
    takes `ADD`."""
    LIST = 8
    """Say which entries are held, without reading them."""
    ORDER = 16
    """Obey an operator."""


ALLOWED: Final = {
    Role.READER: Permission.READ,
    Role.WRITER: Permission.READ | Permission.ADD | Permission.RECOVER,
    Role.BOOKIE: Permission.READ | Permission.RECOVER | Permission.LIST,
    Role.OPERATOR: Permission.READ | Permission.RECOVER | Permission.LIST | Permission.ORDER,
}
NEEDED: Final = {
    Permission.READ: Role.READER,
    Permission.ADD: Role.WRITER,
    Permission.RECOVER: Role.WRITER,
    Permission.LIST: Role.BOOKIE,
    Permission.ORDER: Role.OPERATOR,
}
"""The least role that will do."""
_NUMBERS: Final = {
    Role.READER: pb.ACCESS_READER,
    Role.WRITER: pb.ACCESS_WRITER,
    Role.BOOKIE: pb.ACCESS_BOOKIE,
    Role.OPERATOR: pb.ACCESS_OPERATOR,
}
_ROLES: Final = {number: role for role, number in _NUMBERS.items()}


def check_who(who: str, kinds: Sequence[str] = WHO_KINDS) -> None:
    """Raise `InvalidGrant` if *who* can be nobody, of any of *kinds*."""
    kind, colon, name = who.partition(":")
    if who != ANYTHING and not (colon and name and kind in kinds):
        reason = f"say who as KIND:NAME, with a KIND of {', '.join(kinds)}; '*' is everybody"
        raise InvalidGrant(who, reason)
    _check_text(who)


def _check_text(name: str) -> None:
    if not name.isprintable():
        raise InvalidGrant(name, "it has characters that cannot be printed")
    if len(name.encode(errors="replace")) > NAME_BYTES_MAX:
        raise InvalidGrant(name[:80] + "...", f"it has over {NAME_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """Raises `InvalidGrant` for names that can be nobody's."""

    who: str
    """kind:name, as `ledger.security.names.Identity` shows itself; see above for the asterisk."""
    role: Role
    logs: str
    """See above. Always an asterisk for roles of the cluster."""

    def __post_init__(self) -> None:
        check_who(self.who)
        if not self.logs:
            raise InvalidGrant(self.logs, "say which log, or 'PREFIX*' for several; '*' is all")
        if self.role.is_of_cluster and self.logs != ANYTHING:
            raise InvalidGrant(self.logs, f"{self.role} is a role of the whole cluster")
        _check_text(self.logs)

    def __str__(self) -> str:
        if self.role.is_of_cluster:
            return f"{self.who} is {self.role}"
        return f"{self.who} is {self.role} of {self.logs}"

    def is_of(self, identity: str) -> bool:
        return fits(self.who, identity)

    def is_for(self, log: str | None) -> bool:
        """Return whether it counts for *log*; None: for what belongs to no log."""
        return self.logs == ANYTHING or (log is not None and fits(self.logs, log))

    def allows(self, log: str | None) -> int:
        """Return the sum of the actions that it allows on *log*; None: on what belongs to no log.
        See above for dlog's own."""
        actions = int(ALLOWED[self.role]) if self.is_for(log) else 0
        if log is not None and log.startswith(OWN_LOGS):
            if self.role is Role.OPERATOR:
                actions |= Permission.ADD
            elif self.logs == ANYTHING and not self.role.is_of_cluster:
                actions &= Permission.READ
        return actions

    @property
    def everywhere(self) -> int:
        """The sum of the actions that it allows on whatever there is."""
        return self.allows(None) & self.allows(OWN_LOGS)

    @property
    def somewhere(self) -> int:
        """The sum of the actions that it allows on some log at least."""
        return self.allows(self.logs) | self.allows(OWN_LOGS)


BY_CERTIFICATE: Final = Grant("uri:dlog:bookie:*", Role.BOOKIE, ANYTHING)
"""Is there always: who signs such a certificate says so."""


@dataclass(frozen=True, slots=True)
class Rules:
    """All grants, in order, each once. Raises `InvalidGrant` if they are too many."""

    grants: tuple[Grant, ...] = ()
    changed_by: str = field(default="", compare=False)
    """Who made the last change, as he says himself."""
    changed_ms: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        assert list(self.grants) == sorted(set(self.grants)), "in order, each once"
        if len(self.grants) > GRANTS_MAX or len(self.encode()) > GRANTS_BYTES_MAX:
            raise InvalidGrant(
                f"{len(self.grants)} grants",
                f"{GRANTS_MAX} in {GRANTS_BYTES_MAX} bytes are the most; let some names share a "
                "prefix, and grant that",
            )

    def granted(self, grant: Grant) -> Self:
        """Return rules with *grant*; the same if it is there. Raises `InvalidGrant`."""
        return replace(self, grants=tuple(sorted({*self.grants, grant})))

    def revoked(self, grant: Grant) -> Self:
        """Return rules without *grant*. Raises `NoSuchGrant`."""
        if grant not in self.grants:
            raise NoSuchGrant(str(grant))
        return replace(self, grants=tuple(each for each in self.grants if each != grant))

    def of(self, identity: str) -> tuple[Grant, ...]:
        """Return what *identity* was granted, the strongest first; nothing if it is empty."""
        if not identity:
            return ()
        found = [each for each in (*self.grants, BY_CERTIFICATE) if each.is_of(identity)]
        return tuple(sorted(found, key=lambda each: (-ALLOWED[each.role], each)))

    def encode(self) -> bytes:
        node = pb.AccessNode(
            version=FORMAT_VERSION, changed_by=self.changed_by, changed_ms=self.changed_ms
        )
        for each in self.grants:
            node.grants.add(who=each.who, role=_NUMBERS[each.role], logs=each.logs)
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises `DamagedMetadata`, also for what a newer program wrote: what is not understood
        must not be taken for less than it says."""
        node = pb.AccessNode()
        parse_node(node, value, ACCESS, version=FORMAT_VERSION)
        try:
            grants = {Grant(each.who, _ROLES[each.role], each.logs) for each in node.grants}
            return cls(tuple(sorted(grants)), node.changed_by, node.changed_ms)
        except (KeyError, InvalidGrant) as error:
            raise DamagedMetadata(ACCESS, f"it has a grant that means nothing: {error}") from error


def allowed(grants: Iterable[Grant], log: str | None) -> int:
    """Return the sum of the actions that *grants* of one identity allow on *log*; None: on what
    belongs to no log."""
    total = 0
    for each in grants:
        total |= each.allows(log)
    return total


def grant_for(grants: Iterable[Grant], action: Permission, log: str | None) -> Grant | None:
    """Return the first of *grants* that allows *action* on *log*, or None."""
    return next((one for one in grants if one.allows(log) & action), None)


def fits(pattern: str, name: str) -> bool:
    """Return whether *pattern* is *name*, or how it begins, if an asterisk ends it."""
    if pattern.endswith(ANYTHING):
        return name.startswith(pattern[:-1])
    return pattern == name
