"""Which ids may touch which nodes of a namespace on ZooKeeper, with roles and without. Pure.

An id is written ``scheme:id``, as ZooKeeper writes it:

    digest:alice:<SHA-1 of alice:password, Base64>
    x509:CN=bookies,O=Example
    sasl:dlog/host@REALM
    x509:CN=report (read)                           this one may read all of them, and change none

Without roles `/instance` is the model: every node that is made later gets the ids that it has. None
at all stands for ``world:anyone``: whoever reaches the server may do everything. With roles:

    operators   everything
    bookies     register, make their own cookie, change ledgers, marks and locks of repair
    clients     make, change and delete ledgers and logs, stand for election, mark ledgers
    readers     read

What decides rights or identity is for operators alone: grants, quotas, names of renamed logs, the
instance and its level, which bookies leave. Whose a ledger is, its maker says once, and operators
alone change or delete it. A bookie makes its cookie, and then only that bookie and operators change
it. ZooKeeper lets delete a node who may delete below its parent, so nobody but operators may delete
or make anything below the root, below ``/cookies`` or of another bookie, or delete anything below
``/owners``.

A namespace that was made without roles has operators and readers only: each of its nodes has the
same ACL then.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions

from ledger.errors import InvalidValue
from ledger.metastore.ops import INSTANCE, ROOT, name_of, parent_of

IDS_MAX: Final = 64
SCHEMES: Final = ("digest", "x509", "sasl", "ip")
_SHA1_BYTES: Final = 20
_WORLD: Final = "world:anyone"
_READ_SUFFIX: Final = " (read)"
_RIGHTS: Final = {
    "read": Permissions.READ,
    "write": Permissions.WRITE,
    "create": Permissions.CREATE,
    "delete": Permissions.DELETE,
    "admin": Permissions.ADMIN,
    "nothing": 0,
}
_MASKED: Final = "x"
"""What a server says in place of a digest to who may not change the ACL."""
COOKIES: Final = "/cookies"
OWNERS: Final = "/owners"
LOGS: Final = "/logs"
USERS: Final = "/users"
"""Salted hashes of passwords, for gateways alone: whoever reads them can try out passwords."""
WITNESSES: Final = (INSTANCE, COOKIES, LOGS)
"""Their ACLs show who has which role."""
_READ: Final = Permissions.READ
_ADD: Final = Permissions.READ | Permissions.CREATE
_OWN: Final = Permissions.READ | Permissions.WRITE
_CHANGE: Final = _OWN | Permissions.CREATE | Permissions.DELETE
_CREATOR: Final = Id("auth", "")
"""Stands for the identity that makes the node: the server puts it in its place."""
NODES: Final[Mapping[str, tuple[int, int]]] = {
    # What bookies and clients may do with the node and with all below it.
    ROOT: (_READ, _READ),
    INSTANCE: (_READ, _READ),
    "/layout": (_READ, _READ),
    "/access": (_READ, _READ),
    "/quotas": (_READ, _READ),
    USERS: (0, _READ),
    "/renamed": (_READ, _READ),
    COOKIES: (_ADD, _READ),
    OWNERS: (_READ, _ADD),
    "/bookies": (_READ, _READ),
    "/bookies/available": (_CHANGE, _READ),
    "/bookies/readonly": (_CHANGE, _READ),
    "/bookies/decommissioning": (_READ, _READ),
    "/underreplicated": (_CHANGE, _READ),
    "/underreplicated/ledgers": (_CHANGE, _CHANGE),
    "/ledgers": (_CHANGE, _CHANGE),
    "/idgen": (_CHANGE, _CHANGE),
    "/deletions": (_CHANGE, _CHANGE),
    LOGS: (_READ, _CHANGE),
    "/leaders": (_CHANGE, _CHANGE),
    "/replicas": (_CHANGE, _CHANGE),
    "/kafka": (_READ, _CHANGE),
    "/schemas": (_READ, _CHANGE),
}


def digest_id(user: str, password: str) -> str:
    """Return the id of who authenticates with *password*."""
    said = hashlib.sha1(f"{user}:{password}".encode()).digest()  # noqa: S324 - ZooKeeper's own
    return f"digest:{user}:{base64.b64encode(said).decode()}"


def checked_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """Return *ids*, sorted, each once. Raises `InvalidValue`."""
    found = tuple(sorted(set(ids)))
    if len(found) > IDS_MAX:
        raise InvalidValue("acl", len(found), f"a namespace has {IDS_MAX} ids at most")
    for each in found:
        scheme, _, name = each.removesuffix(_READ_SUFFIX).partition(":")
        if scheme not in SCHEMES or not name or not each.isprintable():
            known = ", ".join(SCHEMES)
            raise InvalidValue("acl", each, f"write scheme:id, with a scheme of {known}")
        if scheme == "digest" and not _is_digest(name):
            raise InvalidValue(
                "acl",
                f"{scheme}:{name.partition(':')[0]}:...",
                "write digest:user:hash, where hash is the Base64 of SHA-1 of user:password; "
                "who is in the URI (auth, auth-file) need not be named",
            )
    check_readers(found)
    return found


def check_readers(ids: Sequence[str]) -> None:
    """Raise `InvalidValue` if some of *ids* may only read, and that would not do."""
    readers = [each for each in ids if each.endswith(_READ_SUFFIX)]
    if not readers:
        return
    if len(readers) == len(ids):
        raise InvalidValue("acl", readers[0], "name somebody who may change the namespace, too")
    check_certificates(ids)


def check_certificates(ids: Sequence[str]) -> None:
    """Raise `InvalidValue` if a user with a password is among *ids*, some of whom may not do
    everything."""
    if any(each.startswith("digest:") for each in ids):
        raise InvalidValue(
            "acl",
            next(each for each in ids if not each.startswith("digest:")) if len(ids) > 1 else "...",
            "ZooKeeper hides users with passwords from those who may not change ACLs, and then "
            "they cannot use the namespace; name certificates (x509)",
        )


def acl_of(ids: Sequence[str]) -> list[ACL]:
    """Return what kazoo calls that; of no ids, what lets everybody in."""
    if not ids:
        return list(OPEN_ACL_UNSAFE)
    return [_entry(each) for each in ids]


def ids_of(acl: Iterable[ACL]) -> tuple[str, ...]:
    """Return the ids in *acl*, sorted; an id with less than all rights has them behind it. Empty if
    everybody may do everything."""
    found = set()
    for each in merged((f"{one.id.scheme}:{one.id.id}", one.perms) for one in acl):
        shown = f"{each.id.scheme}:{each.id.id}"
        whole = each.perms & Permissions.ALL == Permissions.ALL
        found.add(shown if whole else f"{shown} ({'+'.join(each.acl_list).lower() or 'nothing'})")
    return () if found == {_WORLD} else tuple(sorted(found))


def merged(rights: Iterable[tuple[str, int]]) -> list[ACL]:
    """Return one entry for each id, with all *rights* that it has."""
    found: dict[str, int] = {}
    for who, perms in rights:
        found[who] = found.get(who, 0) | perms
    return [ACL(perms, Id(*who.split(":", 1))) for who, perms in found.items()]


def _entry(text: str) -> ACL:
    who, _, rights = text.rpartition(" (")
    perms = Permissions.ALL
    if who:
        perms = 0
        for right in rights.rstrip(")").split("+"):
            perms |= _RIGHTS[right]
    return ACL(perms, Id(*(who or text).split(":", 1)))


def is_masked(ids: Iterable[str]) -> bool:
    """Return whether a server has hidden part of *ids*: they cannot be given to other nodes."""
    return any(
        each.startswith("digest:") and each.rpartition(":")[2].split(" ")[0] == _MASKED
        for each in ids
    )


def _is_digest(name: str) -> bool:
    user, _, said = name.rpartition(":")
    try:
        return bool(user) and len(base64.b64decode(said, validate=True)) == _SHA1_BYTES
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRoles:
    """Ids as `ledger.metastore.acl` writes them, without rights behind them, by role."""

    operators: tuple[str, ...] = ()
    bookies: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()

    @property
    def keep_rights(self) -> bool:
        """Whether those who write logs are others than those who decide who may do what."""
        return bool(self.bookies or self.clients)

    def checked(self) -> "AclRoles":
        """Return the same, sorted. Raises `InvalidValue`."""
        every = (*self.operators, *self.bookies, *self.clients, *self.readers)
        check_certificates(every)
        if not self.operators:
            raise InvalidValue("operator", "", "name somebody who may change everything")
        return AclRoles(
            operators=checked_ids(self.operators),
            bookies=checked_ids(self.bookies),
            clients=checked_ids(self.clients),
            readers=checked_ids(self.readers),
        )

    def ids_at(self, path: str) -> tuple[str, ...]:
        """Return who may touch *path* and how, as `ids_of` shows it; not of cookies."""
        return ids_of(self._acl(path))

    def acl_at(self, path: str) -> list[ACL]:
        """Return the ACL of *path*, of a cookie if the caller is its bookie."""
        acl = self._acl(path)
        if _is_cookie(path) and self.keep_rights:
            acl.append(ACL(_OWN, _CREATOR))
        return acl

    def ids_of_cookie(self, path: str) -> tuple[str, ...]:
        """Return who is to touch a cookie that was made before there were roles: its bookie, if an
        id is of that name, else all bookies; and operators."""
        own = [each for each in self.bookies if _common_name(each) == name_of(path)]
        owners = (ACL(_OWN, acl_of([each])[0].id) for each in own or self.bookies)
        return ids_of([*self._acl(path), *owners])

    def allow(self, path: str, ids: Sequence[str]) -> bool:
        """Return whether *path* is as it is to be if *ids* may touch it."""
        if not _is_cookie(path) or not self.keep_rights:
            return tuple(ids) == self.ids_at(path)
        # Written by some of the bookies: which one made it is not known here.
        owners = {f"{each} (read+write)" for each in self.bookies}
        plain = {f"{each} (read)" for each in self.bookies} & set(self.ids_at(path))
        rest = set(self.ids_at(path)) - plain
        return set(ids) - plain - owners == rest

    def _acl(self, path: str) -> list[ACL]:
        made_once = path != ROOT and parent_of(path) in (COOKIES, OWNERS)
        bookies, clients = (_READ, _READ) if made_once else NODES[nearest(path)]
        rights = [(each, Permissions.ALL) for each in self.operators]
        rights += [(each, bookies) for each in self.bookies]
        rights += [(each, clients) for each in self.clients]
        if not self.keep_rights or nearest(path) != USERS:
            rights += [(each, _READ) for each in self.readers]
        return merged((who, perms) for who, perms in rights if perms)


def roles_of(
    instance: Sequence[str], cookies: Sequence[str] = (), logs: Sequence[str] = ()
) -> AclRoles:
    """Return the roles that the ACLs of `WITNESSES` show; the last two are empty if there is no
    such node."""
    operators = tuple(each for each in instance if not each.endswith(")"))
    others = [each for each in _plain(instance) if each not in operators]
    bookies = tuple(each for each in _allowed(cookies, "create") if each not in operators)
    clients = tuple(each for each in _allowed(logs, "write") if each not in operators)
    return AclRoles(
        operators=operators,
        bookies=bookies,
        clients=clients,
        readers=tuple(each for each in others if each not in (*bookies, *clients)),
    )


def nearest(path: str) -> str:
    """Return the node of `NODES` that says what may be done with *path*."""
    while path not in NODES:
        path = parent_of(path)
    return path


def _is_cookie(path: str) -> bool:
    return path != ROOT and parent_of(path) == COOKIES


def _plain(ids: Iterable[str]) -> Iterator[str]:
    return (each.rpartition(" (")[0] or each for each in ids)


def _allowed(ids: Iterable[str], right: str) -> Iterator[str]:
    for each in ids:
        name, _, rights = each.rpartition(" (")
        if name and right in rights.rstrip(")").split("+"):
            yield name


def _common_name(text: str) -> str:
    """Return the CN of an id of x509 that has one."""
    scheme, _, subject = text.partition(":")
    names = [each for each in subject.split(",") if each.strip().startswith("CN=")]
    return names[0].strip().removeprefix("CN=") if scheme == "x509" and names else ""
