"""The demo says that a cluster has mutual TLS only if that was tried."""

from dataclasses import replace
from pathlib import Path

import pytest

from dlog.demo.security_check import NotSecured, check_secured
from ledger.security.certificates import Security
from ledger.security.settings import TlsMode
from tests.certificates import certificate, put
from tests.ledger.local_bookies import local_bookies
from tests.patience import PATIENT


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (TlsMode.REQUIRED, ""),
        (TlsMode.OPTIONAL, "welcomes a client without TLS"),
        (TlsMode.OFF, "does not welcome a client with TLS"),
    ],
)
async def test_a_cluster_that_takes_less_than_mutual_tls_is_not_called_secured(
    tmp_path: Path, mode: TlsMode, reason: str
) -> None:
    async with local_bookies(1) as cluster:
        (bookie,) = cluster.bookies
        if mode is not TlsMode.OFF:
            await bookie.kill()
            own = certificate(bookie.name, bookie=bookie.name)
            bookie.security = Security(put(tmp_path / "bookie", own, mode=mode))
            await bookie.start()
        settings = put(tmp_path / "client", certificate("client"))
        tls = replace(settings, mode=TlsMode.OPTIONAL)
        client = await cluster.client(replace(PATIENT, tls=tls))
        bookies = {each.bookie: (each.address, each.meant) for each in client.bookies.available()}
        if not reason:
            assert (await check_secured(bookies, settings)).startswith("TLSv1.")
        else:
            with pytest.raises(NotSecured, match=reason):
                await check_secured(bookies, settings)
