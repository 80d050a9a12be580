"""What the cluster's metadata say of the ledgers of one bookie: needed to rebuild its index."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bookie.errors import ForeignCluster
from bookie.tools.findings import Progress, no_progress
from ledger.cluster import open_namespace
from ledger.errors import MetadataUnavailable, NoSuchLedger
from ledger.manager import LedgerStore
from ledger.metastore.port import MetadataStore


@dataclass(frozen=True, slots=True)
class StoreLedgers:
    """All ledgers that there are."""

    keys: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    """Access key of each."""
    here: frozenset[int] = frozenset()
    """Those with a fragment that names the bookie."""


async def store_ledgers(
    store: MetadataStore,
    *,
    bookie: str,
    instance: str,
    directory: str,
    progress: Progress = no_progress,
) -> StoreLedgers:
    """Read the metadata of all ledgers. Whole, or an error is raised.

    Raises `ForeignCluster` if the data in *directory* are of another one."""
    namespace = await open_namespace(store)
    if namespace.instance != instance:
        raise ForeignCluster(directory, instance, namespace.instance)
    ledgers = LedgerStore(store, namespace.layout)
    session = store.session
    ids = [ledger_id async for ledger_id in ledgers.list()]
    keys: dict[int, bytes] = {}
    here = []
    for done, ledger_id in enumerate(ids):
        progress("metadata", done, len(ids))
        try:
            metadata, _ = await ledgers.read(ledger_id)
        except NoSuchLedger:
            continue  # deleted meanwhile
        keys[ledger_id] = metadata.access_key
        if any(bookie in fragment.bookies for fragment in metadata.fragments):
            here.append(int(ledger_id))
    if session is not store.session or session.lost.is_set():
        # Another one may be with a server that lags behind what the list has seen: a ledger
        # that it does not have yet, or not yet with this bookie, would be left unfenced.
        raise MetadataUnavailable(store.uri, "reading all ledgers", 0, "the session changed")
    return StoreLedgers(keys, frozenset(here))
