"""Bugs of reads that believe a server of the metadata store which lags behind the others."""

from bookie import identity
from dlog.aio import survey
from dlog.aio.manifests import ManifestNode
from dlog.manifest import Manifest
from dlog.names import LOGS_PATH, name_of
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

    patch.set(identity, "_get", get)


@mutation("", logs=True)
def sweeps_by_an_old_list_of_logs(patch: Patch) -> None:
    """Ledgers of a log that was just made belong to none that is on it."""

    async def log_names(store: MetadataStore, prefix: str = "") -> list[str]:
        try:
            nodes = await store.children(LOGS_PATH)
        except NoSuchNode:
            return []
        return sorted(name for name in map(name_of, nodes) if name.startswith(prefix))

    patch.set(survey, "log_names", log_names)


@mutation("", logs=True)
def asks_an_old_manifest_for_the_end(patch: Patch) -> None:
    honest = ManifestNode._read

    async def read(self: ManifestNode, path: str, *, fresh: bool) -> tuple[Manifest, int]:
        return await honest(self, path, fresh=fresh and False)

    patch.set(ManifestNode, "_read", read)
