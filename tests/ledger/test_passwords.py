"""What a password protects: the right to add, fence and recover, and with HMAC every byte.

The bookies that refuse here are the real ones, asked past the client that would refuse first.
"""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import Digest, LedgerClient, LedgerWriter
from ledger.entry import WithoutKey, access_key, encode_frame, encode_lac, mac_key
from ledger.environment import Credentials, Environment, repair_credentials
from ledger.errors import EntryLost, KeyDiffers, WrongPassword
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.protocol.answers import Fault
from ledger.quorum import Quorum
from ledger.recovery import recover
from ledger.requests import AddRun, LacQuery, ReadQuery, Status
from ledger.transport.sockets import SocketTransport
from tests.ledger.local_bookies import LocalBookies, local_bookies
from tests.ledger.serving import add
from tests.waiting import TEST_S, until

PASSWORD, GUESS = b"secret", b"guess"
A_BOOKIE = BookieId("bookie-0")


def environment(client: LedgerClient) -> Environment:
    return client._environment


def forged(ledger_id: LedgerId, entry_id: int, *, recovery: bool = False) -> AddRun:
    frame = encode_frame(
        ledger_id=ledger_id, entry_id=entry_id, last_add_confirmed=-1, length=4, payload=b"evil"
    )
    return AddRun(ledger_id, access_key(GUESS), [entry_id], [len(frame)], frame, recovery=recovery)


def forged_lac(ledger_id: LedgerId) -> AddRun:
    frame = encode_lac(ledger_id=ledger_id, last_add_confirmed=99, length=400)
    key = access_key(GUESS)
    return AddRun(ledger_id, key, [-1], [len(frame)], frame, explicit_lac=True)


@pytest.mark.slow
@pytest.mark.parametrize("digest", list(Digest))
async def test_a_bookie_adds_reads_and_fences_nothing_for_a_wrong_key(
    tmp_path: Path, digest: Digest
) -> None:
    async with local_bookies(3, tmp_path) as cluster:
        client = await cluster.client()
        writer = await client.create(password=PASSWORD, digest=digest)
        ledger_id, key = writer.ledger_id, access_key(GUESS)
        await writer.add(b"one")
        transport = environment(client).transport
        assert isinstance(transport, SocketTransport)
        for bookie in writer.metadata.last_fragment.bookies:
            for run in (
                forged(ledger_id, 1),
                forged(ledger_id, 1, recovery=True),
                forged_lac(ledger_id),
            ):
                assert await add(transport, run, bookie) is Status.WRONG_KEY
            for fence in (False, True):
                lac = await transport.read_lac(bookie, LacQuery(ledger_id, key, fence))
                assert (lac.status, lac.fenced) == (Status.WRONG_KEY, False)
                query = ReadQuery(ledger_id, key, 0, 9, fence=fence)
                read = await transport.read(bookie, query)
                assert (read.status, list(read.entries)) == (Status.WRONG_KEY, [])
        await writer.add(b"two")
        assert (await writer.close()).last_entry == 1
        reader = await client.open(ledger_id, password=PASSWORD)
        assert [bytes(e.payload) for e in await reader.read(0, 1)] == [b"one", b"two"]


async def test_a_writer_with_a_wrong_key_is_refused_and_a_recoverer_fails_at_the_bookies(
    tmp_path: Path,
) -> None:
    """Whoever can write the metadata store may disturb, but adds and decides nothing."""
    async with local_bookies(3, tmp_path) as cluster:
        client = await cluster.client()
        writer = await client.create(password=PASSWORD)
        ledger_id = writer.ledger_id
        await writer.add(b"one")
        wrong = Credentials(ledger_id, access_key(GUESS), None)
        metadata, version = await client.ledgers.read(ledger_id)
        with pytest.raises(WrongPassword):
            LedgerWriter(environment(client), wrong, metadata, version)
        with pytest.raises(KeyDiffers):
            await recover(environment(client), wrong, metadata, version)
        assert (await client.ledgers.read(ledger_id))[0].state is not LedgerState.CLOSED
        await writer.add(b"two")
        reader = await client.open(ledger_id, password=PASSWORD)
        assert [bytes(e.payload) for e in await reader.read(0, 1)] == [b"one", b"two"]


@pytest.mark.parametrize("by", ["who knows the password", "who repairs it"])
async def test_a_recovery_of_an_authenticated_ledger_keeps_its_bytes_and_their_codes(
    by: str,
) -> None:
    """Rule 17: what is written back verifies under the writer's password, on every bookie."""
    async with local_bookies() as cluster:
        client, other = await cluster.client(), await cluster.client()
        writer = await client.create(password=PASSWORD, digest=Digest.HMAC_SHA256)
        await writer.add(b"confirmed")
        bookies = [cluster.of(name) for name in writer.metadata.last_fragment.bookies]
        for bookie in bookies:
            bookie.storage.gate.clear()
        pending = writer.add(b"in flight")
        ledger_id = writer.ledger_id
        await until(lambda: all(1 in b.storage.ledgers.get(ledger_id, ()) for b in bookies))
        del bookies[1].storage.ledgers[ledger_id][1]
        await writer.abandon()
        for bookie in bookies:
            bookie.storage.gate.set()
        await asyncio.gather(pending, return_exceptions=True)
        if by == "who repairs it":
            for name in ("first", "again"):
                closed = await other.recover_without_password(ledger_id)
                assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 1), name
        reader = await other.open(ledger_id, password=PASSWORD)
        assert reader.last_entry == 1
        assert bytes((await reader.read(1, 1))[0].payload) == b"in flight"
        await until(lambda: 1 in bookies[1].storage.ledgers[ledger_id])
        frames = {b.storage.ledgers[ledger_id][1] for b in bookies}
        assert len(frames) == 1


async def everywhere(cluster: LocalBookies, writer: LedgerWriter) -> None:
    """Wait until all bookies hold entry 1: a writer is content with two of three."""

    def is_held() -> bool:
        return all(1 in each.storage.ledgers.get(writer.ledger_id, ()) for each in cluster.bookies)

    await until(is_held, "each bookie holds entry 1")


def tamper(cluster: LocalBookies, name: str, writer: LedgerWriter, *, mac: bytes | None) -> None:
    """Put another payload in place of entry 1, with checksums that are right."""
    frame = encode_frame(
        ledger_id=writer.ledger_id,
        entry_id=1,
        last_add_confirmed=0,
        length=6,
        payload=b"bad",
        mac=mac,
    )
    cluster.of(name).storage.ledgers[writer.ledger_id][1] = frame


@pytest.mark.parametrize("mac", [None, mac_key(GUESS)], ids=["no code", "code of another key"])
def test_a_replica_that_a_bookie_tampered_with_is_passed_over(
    mac: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with local_bookies() as cluster, asyncio.timeout(TEST_S):
            client = await cluster.client()
            writer = await client.create(password=PASSWORD, digest=Digest.HMAC_SHA256)
            for payload in (b"one", b"two", b"six"):
                await writer.add(payload)
            await everywhere(cluster, writer)
            await writer.close()
            victim = writer.metadata.last_fragment.bookies[1]  # asked first for entry 1
            tamper(cluster, victim, writer, mac=mac)
            reader = await client.open(writer.ledger_id, password=PASSWORD)
            for _ in range(2):
                (entry,) = await reader.read(1, 1)
                assert bytes(entry.payload) == b"two"
            assert reader.repair_hints[victim, Fault.DAMAGED] >= 1
            assert f"bookie='{victim}' entry_id=1 fault='damaged'" in caplog.text
            assert caplog.text.count("replica_wants_repair") == 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


@pytest.mark.parametrize("by", ["who knows the password", "who repairs it"])
async def test_a_recovery_does_not_take_what_a_bookie_tampered_with(by: str) -> None:
    """Here the frame has no code; one with a code of another key only the password finds."""
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create(password=PASSWORD, digest=Digest.HMAC_SHA256)
        await writer.add(b"one")
        await writer.add(b"two")
        await everywhere(cluster, writer)
        await writer.abandon()
        ledger_id = writer.ledger_id
        for bookie in cluster.bookies:  # nobody knows that entry 1 is confirmed
            bookie.storage.proofs.pop(ledger_id, None)
        tamper(cluster, A_BOOKIE, writer, mac=None)
        if by == "who repairs it":
            await client.recover_without_password(ledger_id)
        reader = await client.open(ledger_id, password=PASSWORD)
        assert reader.last_entry == 1
        assert bytes((await reader.read(1, 1))[0].payload) == b"two"


async def test_an_entry_that_is_damaged_everywhere_is_lost_and_never_delivered() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create(password=PASSWORD, digest=Digest.HMAC_SHA256)
        for payload in (b"one", b"two"):
            await writer.add(payload)
        await everywhere(cluster, writer)
        await writer.close()
        for bookie in cluster.bookies:
            tamper(cluster, bookie.name, writer, mac=None)
        reader = await client.open(writer.ledger_id, password=PASSWORD)
        with pytest.raises(EntryLost):
            await reader.read(1, 1)


def test_who_repairs_has_what_the_metadata_give() -> None:
    """A secret is all that its users have; a password is known to them only."""
    secret = b"s" * 32
    metadata = LedgerMetadata(
        quorum=Quorum(1, 1, 1),
        fragments=(Fragment(EntryId(0), (BookieId("b"),)),),
        digest=Digest.HMAC_SHA256,
        access_key=access_key(secret),
        secret=secret,
    )
    whole = repair_credentials(LedgerId(7), metadata)
    assert (whole.key, whole.checks) == (access_key(secret), mac_key(secret))
    hidden = replace(metadata, secret=b"", access_key=access_key(PASSWORD))
    without = repair_credentials(LedgerId(7), hidden)
    assert (without.key, without.checks) == (
        access_key(PASSWORD),
        WithoutKey(Digest.HMAC_SHA256),
    )
    plain = replace(metadata, digest=Digest.CRC32C)
    assert repair_credentials(LedgerId(7), plain).checks is None
    old = replace(metadata, secret=b"", access_key=access_key(b""))
    assert repair_credentials(LedgerId(7), old).checks == mac_key(b""), "from before secrets"
