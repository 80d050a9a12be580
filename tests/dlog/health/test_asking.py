"""Bookies that want TLS are asked with it."""

from pathlib import Path

import pytest

from dlog.health.checks import gather_servers
from dlog.health.survey import Reach
from ledger.cluster import make_namespace
from ledger.manager import LedgerStore
from ledger.membership import attendance
from ledger.metastore.memory import MemoryStore
from ledger.registry import COOKIES, BookieRegistration, register
from ledger.security.certificates import Security
from ledger.security.settings import Takes
from ledger.wire import metadata_pb2 as pb
from tests.bookie.memory_storage import MemoryStorage
from tests.certificates import certificate, put
from tests.ledger.serving import BOOKIE, Bookie, Secured, secured
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("with_tls", [True, False])
async def test_a_bookie_that_takes_tls_only_is_reached_by_who_has_it(
    tmp_path: Path, *, with_tls: bool
) -> None:
    own = Security(put(tmp_path / "bookie", certificate(BOOKIE, bookie=BOOKIE)))
    ours = Security(put(tmp_path / "us", certificate("operator"))) if with_tls else None
    token = secured.set(Secured(own, own))
    bookie = Bookie(MemoryStorage())
    secured.reset(token)
    await bookie.start()
    store = MemoryStore("memory://health", "health")
    try:
        namespace = await make_namespace(store)
        cookie = pb.CookieNode(version=2, bookie=BOOKIE)
        await store.create(f"{COOKIES}/{BOOKIE}", cookie.SerializeToString())
        await register(store, BookieRegistration(BOOKIE, bookie.address, "x", takes=Takes.TLS))
        ledgers = LedgerStore(store, namespace.layout)
        reach = Reach(store, ledgers, await attendance(store), PATIENCE_S, ours)
        [found] = (await gather_servers(reach)).servers
        assert found.reached is with_tls
    finally:
        await bookie.stop()
        await store.close()
