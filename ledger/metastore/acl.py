"""Pure: the ids that may touch the nodes of a namespace on ZooKeeper.

An id is written ``scheme:id``, as ZooKeeper writes it:

    digest:alice:<SHA-1 of alice:password, Base64>
    x509:CN=bookies,O=Example
    sasl:dlog/host@REALM
    x509:CN=report (read)                           this one may read all of them, and change none

Without roles (`ledger.metastore.acl_roles`) `/instance` is the model: every node that is made
later gets the ids that it has. None at all stands for ``world:anyone``: whoever reaches the server
may do everything.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions

from ledger.errors import InvalidValue

IDS_MAX: Final = 64
SCHEMES: Final = ("digest", "x509", "sasl", "ip")
_SHA1_BYTES: Final = 20
_WORLD: Final = "world:anyone"
_READ: Final = " (read)"
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
        scheme, _, name = each.removesuffix(_READ).partition(":")
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
    readers = [each for each in ids if each.endswith(_READ)]
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
