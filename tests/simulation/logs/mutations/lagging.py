"""Bugs of reads that believe a server of the metadata store which lags behind the others."""

from bookie.identity import stamp
from dlog.manifest import Manifest
from dlog.protocol.manifest_steps import ManifestSteps
from ledger.errors import NoSuchNode
from ledger.metastore.port import MetadataStore
from ledger.metastore.port import Versioned as VersionedValue
from ledger.protocol.procedure import Steps
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
    honest = ManifestSteps._read

    def read(self: ManifestSteps, *, fresh: bool) -> Steps[tuple[Manifest, int]]:
        return honest(self, fresh=fresh and False)

    patch.set(ManifestSteps, "_read", read)
