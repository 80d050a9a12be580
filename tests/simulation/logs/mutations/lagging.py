"""Bugs of reads that believe a server of the metadata store which lags behind the others."""

from bookie.identity import stamp
from dlog.aio.store.manifests import ManifestNode
from dlog.manifest import Manifest
from ledger.errors import NoSuchNode
from ledger.metastore.port import MetadataStore
from ledger.metastore.port import Versioned as VersionedValue
from ledger.registry import COOKIES
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("own bug", logs=True)
def believes_a_lagging_server_that_nobody_knows_the_bookie(patch: Patch) -> None:
    async def get(store: MetadataStore, bookie: str) -> VersionedValue | None:
        try:
            return await store.get(f"{COOKIES}/{bookie}")
        except NoSuchNode:
            return None

    patch.set(stamp, "_get", get)


@mutation("", logs=True)
def asks_an_old_manifest_for_the_end(patch: Patch) -> None:
    honest = ManifestNode._read

    async def read(self: ManifestNode, path: str, *, fresh: bool) -> tuple[Manifest, int]:
        return await honest(self, path, fresh=fresh and False)

    patch.set(ManifestNode, "_read", read)
