"""What only newer programs can read is not written before the cluster is at its level."""

import pytest

import dlog.testing
from dlog.aio.admin import create_log, log_settings, update_settings
from dlog.settings import LogSettings
from ledger.client import LedgerClient
from ledger.cluster import decode_instance, encode_instance
from ledger.errors import LevelTooLow
from ledger.feature_level import ENCRYPTION, ClusterLevel
from ledger.metastore.ops import INSTANCE

ENCRYPTED = LogSettings(encrypt_with="one")


async def put_at_level(client: LedgerClient, level: int) -> None:
    instance, _ = decode_instance((await client.store.get(INSTANCE)).value)
    await client.store.set(INSTANCE, encode_instance(instance, ClusterLevel(level)))


async def test_no_log_is_encrypted_before_the_cluster_is_at_the_level_of_it() -> None:
    async with dlog.testing.cluster(bookies=1) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        await put_at_level(client, ENCRYPTION - 1)
        with pytest.raises(LevelTooLow, match="an encrypted log needs level 2"):
            await create_log("a", settings=ENCRYPTED, client=client)
        await create_log("a", client=client)
        with pytest.raises(LevelTooLow):
            await update_settings("a", {"encrypt_with": "one"}, client=client)
        await update_settings("a", {"record_bytes_max": 1000}, client=client)
        assert (await log_settings("a", client=client)).encrypt_with == ""
        await put_at_level(client, ENCRYPTION)
        await update_settings("a", {"encrypt_with": "one"}, client=client)
        await create_log("b", settings=ENCRYPTED, client=client)
        await client.close()
