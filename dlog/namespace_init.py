"""Makes a namespace with its layout and who may touch it, which `protect` changes later."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ledger.cluster import make_namespace, open_namespace
from ledger.errors import (
    InvalidValue,
    NamespaceMismatch,
    NodeExists,
    NoNamespace,
    NoSuchNode,
)
from ledger.ledger_owner import OWNERS_PATH
from ledger.manager.ids import ID_BLOCK_PATH, make_counter
from ledger.manager.ledger_store import OWNERS_MADE
from ledger.metastore import open_store
from ledger.metastore.acl import COOKIES, NODES, AclRoles, check_readers, checked_ids
from ledger.metastore.acl_survey import CALLS_MAX, read_roles
from ledger.metastore.ops import INSTANCE, ROOT, parent_of
from ledger.metastore.port import MetadataStore, NodeAcls
from ledger.metastore.uri import without_secrets
from ledger.security.access import ACCESS, Rules
from ledger.security.quotas import QUOTAS, Quotas
from ledger.security.settings import OFF, TlsSettings
from ledger.tasks import for_each

NO_ROLES: Final = AclRoles()
_OF_THE_SERVER: Final = "/zookeeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialised:
    uri: str
    """Without its options, which can hold a password."""
    made: bool
    """False: it was there."""
    instance: str
    layout: str
    ids: tuple[str, ...]
    """Who may touch it, as `ledger.metastore.acl` writes it; empty: everybody."""
    roles: AclRoles = NO_ROLES
    """Who may touch what of it, if that is not the same for all nodes."""

    def to_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "uri": self.uri,
            "made": self.made,
            "instance": self.instance,
            "layout": self.layout,
            "acl": list(self.ids),
            "roles": shown_roles(self.roles),
        }


async def initialise(
    uri: str,
    *,
    layout: str | None = None,
    ids: tuple[str, ...] = (),
    roles: AclRoles = NO_ROLES,
    session_timeout_s: float = 10.0,
    timeout_s: float = 10.0,
    tls: TlsSettings = OFF,
) -> Initialised:
    """Make the namespace *uri*, if there is none; return what it is.

    On ZooKeeper *ids* and the user in the URI alone may touch it, the nodes that others make later
    too; or those that *roles* name, each as its role says. Raises `NamespaceMismatch` if it is
    there with another layout than *layout*, or for others than these, if any are given;
    `InvalidUri`, `InvalidValue`, `MetadataDenied`, `MetadataUnavailable`, `DamagedMetadata`."""
    if roles != NO_ROLES:
        if ids:
            raise InvalidValue("acl", ids[0], "give roles, or ids that may do everything")
        roles = roles.checked()
    store = await open_store(
        uri,
        session_timeout_s=session_timeout_s,
        timeout_s=timeout_s,
        tls=tls,
        ids=roles.ids_at(INSTANCE) if roles != NO_ROLES else checked_ids(ids),
    )
    try:
        acls = store.acls
        if acls is not None:
            if roles == NO_ROLES:
                check_readers(acls.wanted_ids)
            elif any(each.startswith("digest:") for each in acls.wanted_ids):
                _refuse_password(acls)
        try:
            found = await open_namespace(store, layout=layout)
            made = False
        except NoNamespace:
            found = await make_namespace(store, layout=layout)
            made = True
        stand: tuple[str, ...] = ()
        if acls is not None:
            stand = await acls.ids(INSTANCE)
            if roles != NO_ROLES:
                _check_same(roles, await read_roles(acls), stand)
            elif acls.wanted_ids and stand != acls.wanted_ids:
                raise NamespaceMismatch(
                    f"for {', '.join(stand) or 'everybody'}", f"for {', '.join(acls.wanted_ids)}"
                )
            if roles != NO_ROLES:
                await _protect(store, acls, roles)
            elif made and stand:
                await acls.set_ids(ROOT, stand)
        return Initialised(
            uri=without_secrets(uri),
            made=made,
            instance=found.instance,
            layout=found.layout,
            ids=stand,
            roles=roles,
        )
    finally:
        await store.close()


async def protect(store: MetadataStore, roles: AclRoles) -> int:
    """Let *roles* touch the namespace of *store*, and nobody else, and what is there already with
    it; return how many ACLs changed. It can be repeated, also after it ended half-way.

    Raises `NoNamespace`, `InvalidValue` for roles that would not do and for a store without ACLs,
    `MetadataDenied`."""
    roles = roles.checked()
    acls = acls_of(store)
    if acls.wanted_ids:
        _refuse_password(acls)
    await open_namespace(store)
    return await _protect(store, acls, roles)


def acls_of(store: MetadataStore) -> NodeAcls:
    """Return who may touch which node of *store*. Raises `InvalidValue` if it does not keep it."""
    if store.acls is None:
        raise InvalidValue("uri", store.uri, "only ZooKeeper (zk://...) has ACLs")
    return store.acls


def shown_roles(roles: AclRoles) -> dict[str, list[str]]:
    """Return the ids of each role, by its name."""
    return {
        "operators": list(roles.operators),
        "bookies": list(roles.bookies),
        "clients": list(roles.clients),
        "readers": list(roles.readers),
    }


def _check_same(wanted: AclRoles, found: AclRoles, instance: tuple[str, ...]) -> None:
    """A namespace whose maker ended half-way shows no clients; that is carried on."""
    if instance != wanted.ids_at(INSTANCE) or (found.keep_rights and found != wanted):
        raise NamespaceMismatch(
            "for others", "for these ('dlog access protect' says who may touch one that is there)"
        )


def _refuse_password(store: NodeAcls) -> None:
    raise InvalidValue(
        "acl", store.uri, "roles are of certificates; take the password out of the URI"
    )


async def _protect(store: MetadataStore, acls: NodeAcls, roles: AclRoles) -> int:
    if not await acls.is_among(roles.ids_at(INSTANCE)):
        raise InvalidValue(
            "operator",
            ", ".join(roles.operators),
            "ZooKeeper does not know this process by it, so it would lock itself out; "
            "'dlog tls show' prints the name of a certificate",
        )
    changed = 0
    if not roles.allow(ROOT, await acls.ids(ROOT)):  # first: from here on nobody else adds to it
        await acls.set_ids(ROOT, roles.ids_at(ROOT))
        changed += 1
    values = {ACCESS: Rules().encode(), QUOTAS: Quotas().encode()}
    for path in NODES:
        if path == ID_BLOCK_PATH:
            await make_counter(store)
        elif path != ROOT:
            with suppress(NodeExists):
                await store.create(path, values.get(path, b""))

    if await store.exists(OWNERS_PATH) == OWNERS_MADE:
        await store.set(OWNERS_PATH, b"")

    async def mend(path: str) -> None:
        nonlocal changed
        with suppress(NoSuchNode):  # deleted since it was listed
            if not roles.allow(path, await acls.ids(path)):
                is_cookie = parent_of(path) == COOKIES
                await acls.set_ids(
                    path, roles.ids_of_cookie(path) if is_cookie else roles.ids_at(path)
                )
                changed += 1
            names = await store.children(path)
            below.extend(f"{path}/{name}" for name in names)

    level = [f"/{name}" for name in await store.children(ROOT) if f"/{name}" != _OF_THE_SERVER]
    while level:
        below: list[str] = []
        await for_each(level, mend, at_once=CALLS_MAX)
        level = below
    return changed
