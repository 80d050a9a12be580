"""Makes a namespace with what it cannot get later: its layout, and who may touch it."""

from dataclasses import dataclass

from ledger.cluster import make_namespace, open_namespace
from ledger.errors import NamespaceMismatch, NoNamespace
from ledger.metastore import open_store
from ledger.metastore.acl import check_readers, checked_ids
from ledger.metastore.paths import INSTANCE
from ledger.metastore.uri import without_secrets
from ledger.metastore.zookeeper import ZooKeeperStore
from ledger.security.settings import OFF, TlsSettings


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

    def shown(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "uri": self.uri,
            "made": self.made,
            "instance": self.instance,
            "layout": self.layout,
            "acl": list(self.ids),
        }


async def initialise(
    uri: str,
    *,
    layout: str | None = None,
    ids: tuple[str, ...] = (),
    session_timeout_s: float = 10.0,
    timeout_s: float = 10.0,
    tls: TlsSettings = OFF,
) -> Initialised:
    """Make the namespace *uri*, if there is none; return what it is.

    On ZooKeeper *ids* and the user in the URI alone may touch it, those that others make later
    too. Raises `NamespaceMismatch` if it is there with another layout than *layout*, or for
    others than these, if any are given; `InvalidUri`, `InvalidValue`, `MetadataDenied`,
    `MetadataUnavailable`, `DamagedMetadata`."""
    store = await open_store(
        uri,
        session_timeout_s=session_timeout_s,
        timeout_s=timeout_s,
        tls=tls,
        ids=checked_ids(ids),
    )
    try:
        if isinstance(store, ZooKeeperStore):
            check_readers(store.wanted_ids)
        try:
            found = await open_namespace(store, layout=layout)
            made = False
        except NoNamespace:
            found = await make_namespace(store, layout=layout)
            made = True
        stand: tuple[str, ...] = ()
        if isinstance(store, ZooKeeperStore):
            stand = await store.ids(INSTANCE)
            if store.wanted_ids and stand != store.wanted_ids:
                raise NamespaceMismatch(
                    f"for {', '.join(stand) or 'everybody'}", f"for {', '.join(store.wanted_ids)}"
                )
            if made and stand:
                await store.protect_root(stand)
        return Initialised(
            uri=without_secrets(uri),
            made=made,
            instance=found.instance,
            layout=found.layout,
            ids=stand,
        )
    finally:
        await store.close()
