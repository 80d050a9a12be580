"""Encrypted logs on real bookies, whose disks are in memory: what stands there, who reads it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import dlog.testing
from dlog.aio import Log
from dlog.aio.admin import (
    create_log,
    log_info,
    rename_log,
    seal_log,
    truncate_log,
    update_settings,
    verify_log,
)
from dlog.aio.maintain.janitor import Janitor
from dlog.aio.maintain.rewrap import rewrap
from dlog.aio.store import ManifestNode
from dlog.aio.write.sink import Sink, Stager
from dlog.columns import Columns
from dlog.encryption.files import add_key
from dlog.encryption.keyring import use_keys
from dlog.encryption.ledgers import STAMP_KEY
from dlog.errors import DamagedLog, KeyMissing
from dlog.health.record_trace import trace_record
from dlog.manifest import ENCRYPTED_VERSION
from dlog.position import Timestamp
from dlog.receipts import Receipt
from dlog.recordbatch import Codec, encode_batch
from dlog.settings import LogSettings
from dlog.testing import AsyncCluster
from dlog.wire import log_pb2 as pb
from ledger.client import LedgerClient
from tests.dlog.aio.test_sink import QUERY, batch
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.waiting import PATIENCE_S

ENCRYPTED: Final = LogSettings(encrypt_with="one")
SECRETS: Final = (b"secret-value", b"secret-key", b"secret-header", b"secret-name")


@pytest.fixture(autouse=True)
def keys(tmp_path: Path) -> Iterator[Path]:
    """This process has the key "one"; the file is of this test."""
    path = tmp_path / "keys"
    add_key(path, "one")
    use_keys(file=os.fspath(path))
    yield path
    use_keys()


def without_keys(path: Path) -> None:
    other = path.with_name("others")
    add_key(other, "other")
    use_keys(file=os.fspath(other))


def with_the_newest_key_only(path: Path) -> None:
    path.write_text(path.read_text().splitlines()[-1])
    use_keys(file=os.fspath(path))


async def append_secrets(log: Log, first: int = 0) -> None:
    for number in range(first, first + 3):
        await log.append(
            b"secret-value %d" % number,
            key=b"secret-key",
            txid=number,
            headers={"secret-name": b"secret-header"},
        )


async def values(client: LedgerClient | FakeLedgers, **more: Any) -> list[bytes]:
    async with await Log.tail("log", client=client, follow=False, **more) as reader:
        return [record.value async for record in reader]


async def custom_of(client: LedgerClient | FakeLedgers) -> list[bytes | None]:
    manifest, _ = await ManifestNode(client.store, "log").read()
    found = [await client.describe(segment.ledger_id) for segment in manifest.segments]
    return [metadata.custom.get(STAMP_KEY) for metadata in found]


def on_disks(cluster: AsyncCluster) -> bytes:
    """Return all that bookies have written."""
    contents = [content for bookie in cluster.bookies for content in bookie._disk._files.values()]
    return b"\0".join(bytes(each) for each in contents)


@pytest.mark.parametrize("codec", Codec)
async def test_no_disk_of_a_bookie_ever_holds_what_was_appended_and_readers_get_it_all(
    codec: Codec,
) -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        settings = LogSettings(encrypt_with="one", codec=codec)
        async with await Log.open("log", client=client, settings=settings) as log:
            await append_secrets(log)
            await log.roll()
            await append_secrets(log, 3)
        sink = await Sink.open("log", client=client)
        await sink.commit(Receipt(QUERY, 1), [batch(b"secret-value inline")])
        stager = await Stager.begin(client, sink.assignment, Receipt(QUERY, 2))
        for number in range(3):
            await stager.add(batch(b"secret-value staged %d" % number))
        await sink.commit(Receipt(QUERY, 2), [await stager.seal()])
        await sink.abandon()
        async with await Log.open("plain", client=client) as plain:
            await plain.append(b"what is plain is found")
        for index in range(3):
            await cluster.restart_bookie(index)
        disks = on_disks(cluster)
        assert b"what is plain is found" in disks, "the test looks at what is there"
        assert not [secret for secret in SECRETS if secret in disks]
        async with await Log.tail("log", client=client, follow=False) as reader:
            found = [record async for record in reader]
        assert [record.value for record in found[:3]] == [b"secret-value %d" % n for n in range(3)]
        assert found[5].key == b"secret-key"
        assert dict(found[5].headers) == {"secret-name": b"secret-header"}
        assert found[6].value == b"secret-value inline"
        assert [record.value[-1:] for record in found[7:]] == [b"0", b"1", b"2"]
        await client.close()


async def test_who_has_no_key_hears_what_to_give_and_looks_after_the_log_all_the_same(
    keys: Path,
) -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        log = await Log.open("log", client=client, settings=ENCRYPTED)
        await append_secrets(log)
        await log.roll()
        await append_secrets(log, 3)
        await log.abandon()
        without_keys(keys)
        with pytest.raises(KeyMissing, match=r"'one' .* does not have it: set DLOG_KEY_FILE"):
            await values(client)
        with pytest.raises(KeyMissing):
            await Log.last("log", client=client)
        with pytest.raises(KeyMissing):
            await Log.open("log", client=client)
        assert (await log_info("log", client=client)).manifest.epoch == log.epoch, "nobody fenced"
        report = await verify_log("log", client=client)
        assert report.healthy, report
        assert report.records == 6
        traced = await trace_record(client, "log", 1, timeout_s=PATIENCE_S)
        assert traced.is_whole
        assert traced.record is not None
        assert (traced.record.txid, traced.record.key, traced.record.value) == (1, None, b"")
        now_ms = traced.record.timestamp_ms
        assert await Log.end_of("log", client=client) == 6
        await truncate_log("log", before=3, client=client)
        assert not (await Janitor(client).run_once()).orphans
        assert await seal_log("log", client=client) == 6
        use_keys(file=os.fspath(keys))
        assert await values(client, start=Timestamp(now_ms)) == [
            b"secret-value %d" % number for number in range(3, 6)
        ]
        await client.close()


async def test_a_key_is_changed_from_the_next_segment_on_and_old_ones_open_what_they_closed(
    keys: Path,
) -> None:
    client = FakeCluster().client()
    add_key(keys, "two")
    log = await Log.open("log", client=client)
    await log.append(b"in plain")
    for number, name in enumerate(["one", "two", ""]):
        await update_settings("log", {"encrypt_with": name}, client=client)
        await log.roll()
        await log.append(b"%d" % number)
    await log.close()
    assert await custom_of(client) == [None, b"one", b"two", None]
    assert await values(client) == [b"in plain", b"0", b"1", b"2"]
    with_the_newest_key_only(keys)
    with pytest.raises(KeyMissing, match="'one'"):
        await values(client)
    assert await values(client, start=2) == [b"1", b"2"]


async def test_a_writer_that_lacks_the_next_key_goes_on_with_the_one_before(keys: Path) -> None:
    client = FakeCluster().client()
    log = await Log.open("log", client=client, settings=ENCRYPTED)
    await log.append(b"a")
    await update_settings("log", {"encrypt_with": "nobody-has-it"}, client=client)
    await log.roll()
    await log.append(b"b")
    add_key(keys, "nobody-has-it")
    await log.roll()
    await log.append(b"c")
    await log.close()
    assert await custom_of(client) == [b"one", b"one", b"nobody-has-it"]
    assert await values(client) == [b"a", b"b", b"c"]


async def test_a_takeover_of_a_dead_writer_goes_on_with_a_data_key_of_its_own() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    first = await Log.open("log", client=client, settings=ENCRYPTED)
    await first.append(b"same record")
    second = await Log.open("log", client=client)
    await second.append(b"same record")
    await second.close()
    await first.abandon()
    entries = [ledger.entries[0] for ledger in cluster.ledgers.values()]
    stamps = [ledger.custom["dlog.data-key"] for ledger in cluster.ledgers.values()]
    assert len(set(stamps)) == 2
    assert len({entry[-27:] for entry in entries}) == 2, "one text, two ciphertexts"
    assert await values(client) == [b"same record", b"same record"]


async def test_a_renamed_log_is_read_as_before() -> None:
    client = FakeCluster().client()
    async with await Log.open("before", client=client, settings=ENCRYPTED) as log:
        await log.append(b"a")
    await rename_log("before", "log", client=client)
    assert await values(client) == [b"a"]


@pytest.mark.parametrize("change", ["swapped", "of another log", "in plain", "one bit"])
async def test_what_is_not_as_its_writer_wrote_it_for_this_place_is_never_given_to_a_reader(
    change: str,
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    for name in ("plain", "other", "log"):
        settings = LogSettings() if name == "plain" else ENCRYPTED
        async with await Log.open(name, client=client, settings=settings) as log:
            await log.append(b"of %s 0" % name.encode())
            await log.append(b"of %s 1" % name.encode())
    plain, other, own = cluster.ledgers.values()
    first = own.entries[0]
    match change:
        case "swapped":
            own.entries[0] = own.entries[1]
        case "of another log":
            own.entries[0] = other.entries[0]
        case "in plain":
            own.entries[0] = plain.entries[0]
        case _:
            own.entries[0] = first[:-1] + bytes([first[-1] ^ 1])
    with pytest.raises(DamagedLog, match="entry 0 of ledger"):
        await values(client)
    own.entries[0] = first
    assert await values(client) == [b"of log 0", b"of log 1"]


@pytest.mark.parametrize("how", ["in plain", "moved"])
async def test_a_writer_believes_no_last_batch_that_its_key_does_not_open(how: str) -> None:
    """As one with the txid 999999 was believed, which let no txid after it."""
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client, settings=ENCRYPTED)
    await append_secrets(log)
    (own,) = cluster.ledgers.values()
    forged = Columns(values=[b"forged"], txids=[999_999])
    in_plain = encode_batch(forged, base_index=3, base_timestamp_ms=1)
    own.entries.append(own.entries[-1] if how == "moved" else in_plain)
    with pytest.raises(DamagedLog, match="first or last entry of ledger"):
        await Log.open("log", client=client)
    own.entries.pop()
    async with await Log.open("log", client=client) as after:
        assert after.last_txid == 2
    await log.abandon()


async def test_a_ledger_whose_metadata_lost_their_key_is_not_read_as_if_it_were_plain() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client, settings=ENCRYPTED) as log:
        await log.append(b"a")
    [ledger] = cluster.ledgers.values()
    custom = dict(ledger.custom)
    for missing in ({STAMP_KEY}, {"dlog.data-key"}, {STAMP_KEY, "dlog.data-key"}):
        ledger.custom = {name: custom[name] for name in custom.keys() - missing}
        with pytest.raises(DamagedLog, match="encrypted"):
            await values(client)


async def test_data_keys_of_sealed_segments_are_wrapped_anew_and_no_entry_is_touched(
    keys: Path,
) -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        add_key(keys, "two")
        log = await Log.open("log", client=client, settings=ENCRYPTED)
        for number in range(3):
            await log.append(b"%d" % number)
            if number < 2:
                await log.roll()
        done = await rewrap(client, "log", "two")
        assert (done.rewrapped, done.left) == (2, 1)
        await log.close()
        done = await rewrap(client, "log", "two")
        assert (done.rewrapped, done.left) == (1, 0)
        assert (await rewrap(client, "log", "two")).rewrapped == 0
        assert await custom_of(client) == [b"two"] * 3
        with_the_newest_key_only(keys)
        assert await values(client) == [b"0", b"1", b"2"]
        await client.close()


async def test_programs_that_would_write_it_in_plain_refuse_the_manifest() -> None:
    client = FakeCluster().client()
    await create_log("log", settings=ENCRYPTED, client=client)
    path = ManifestNode(client.store, "log").path
    node = pb.ManifestNode.FromString((await client.store.get(path)).value)
    assert node.version == ENCRYPTED_VERSION == 3
    await update_settings("log", {"encrypt_with": ""}, client=client)
    node = pb.ManifestNode.FromString((await client.store.get(path)).value)
    assert node.version == 1
