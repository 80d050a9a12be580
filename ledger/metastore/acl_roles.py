"""Pure: which identities may touch which nodes of a namespace on ZooKeeper, by role.

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kazoo.security import ACL, Id, Permissions

from ledger.errors import InvalidValue
from ledger.metastore.acl import acl_of, check_certificates, checked_ids, ids_of, merged
from ledger.metastore.paths import INSTANCE, ROOT, name_of, parent_of

COOKIES: Final = "/cookies"
OWNERS: Final = "/owners"
LOGS: Final = "/logs"
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
}


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
        rights += [(each, _READ) for each in self.readers]
        return merged(rights)


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
