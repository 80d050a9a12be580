"""Who reaches bookies, and not the metadata store, neither reads a log nor forges nor stops it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from dlog.aio import Log
from dlog.manifest import Segment
from dlog.settings import LogSettings
from dlog.testing import AsyncCluster, cluster
from ledger import LedgerClient
from ledger.entry import Digest, access_key, encode_frame, encode_lac, mac_key
from ledger.errors import WrongPassword
from ledger.ids import BookieId, BookieIdentity, LedgerId
from ledger.metastore import open_store
from ledger.registry import find_registration
from ledger.requests import AddRun, LacQuery, ReadQuery, Status
from ledger.transport.sockets import SocketTransport
from tests.ledger.serving import add
from tests.patience import PATIENT, patient_transport

NOTHING = access_key(b"")
"""What every ledger without a password once had."""


@dataclass(frozen=True)
class Stranger:
    """Knows where bookies listen and which ids ledgers have, and tries *key*."""

    transport: SocketTransport
    bookies: tuple[BookieId, ...]
    key: bytes

    async def statuses(self, ledger_id: LedgerId, *, fence: bool) -> set[Status]:
        """Return what bookies that have the ledger say to reading it, and fencing it."""
        found = set()
        for bookie in self.bookies:
            lac = await self.transport.read_lac(bookie, LacQuery(ledger_id, self.key, fence))
            query = ReadQuery(ledger_id, self.key, 0, 99, fence=fence)
            read = await self.transport.read(bookie, query)
            assert not read.entries or read.status is Status.OK
            found |= {lac.status, read.status}
        return found

    async def forge(self, ledger_id: LedgerId, entry: int, mac: bytes | None) -> set[Status]:
        """Return what bookies say to entries, by a writer and by a recovery, and to a LAC."""
        frame = encode_frame(
            ledger_id=ledger_id,
            entry_id=entry,
            last_add_confirmed=entry - 1,
            length=9,
            payload=b"forged",
            mac=mac,
        )
        lac = encode_lac(ledger_id=ledger_id, last_add_confirmed=entry, length=9, mac=mac)
        runs = [
            AddRun(ledger_id, self.key, [entry], [len(frame)], frame),
            AddRun(ledger_id, self.key, [entry], [len(frame)], frame, recovery=True),
            AddRun(ledger_id, self.key, [-1], [len(lac)], lac, explicit_lac=True),
        ]
        return {await add(self.transport, run, at) for run in runs for at in self.bookies}


async def identities(made: AsyncCluster) -> dict[BookieId, BookieIdentity]:
    """Return who each bookie is, as it registered."""
    found = {}
    store = await open_store(made.uri)
    try:
        for bookie in made.bookies:
            registration = await find_registration(store, bookie.name)
            assert registration is not None
            assert registration.meant is not None
            found[BookieId(bookie.name)] = registration.meant
    finally:
        await store.close()
    return found


@asynccontextmanager
async def stranger(made: AsyncCluster, key: bytes = NOTHING) -> AsyncIterator[Stranger]:
    meant = await identities(made)  # no secret: bookies tell it as they refuse
    addresses = {BookieId(each.name): each.address for each in made.bookies}
    transport = patient_transport(addresses.get, meant=meant.__getitem__)
    try:
        yield Stranger(transport, tuple(addresses), key)
    finally:
        await transport.close()


async def last_segment(log: Log) -> Segment:
    manifest, _ = await log.writer.node.read()
    assert manifest.last is not None
    return manifest.last


async def values(made: AsyncCluster) -> list[bytes]:
    async with await Log.tail("log", uri=made.uri, follow=False) as reader:
        return [record.value async for record in reader]


@pytest.mark.parametrize("digest", list(Digest))
async def test_a_stranger_reads_forges_and_stops_nothing(digest: Digest) -> None:
    async with cluster(3) as made, stranger(made) as reaching:
        settings = LogSettings(digest=digest)
        async with await Log.open("log", uri=made.uri, settings=settings) as log:
            await log.append_many([b"secret %d" % i for i in range(3)])
            ledger_id = (await last_segment(log)).ledger_id
            mac = mac_key(b"") if digest is Digest.HMAC_SHA256 else None
            assert await reaching.statuses(ledger_id, fence=False) == {Status.WRONG_KEY}
            assert await reaching.forge(ledger_id, 1, mac) == {Status.WRONG_KEY}
            assert await reaching.statuses(ledger_id, fence=True) == {Status.WRONG_KEY}
            assert (await log.append(b"undisturbed")).offset == 3
            await log.roll()
            await log.append(b"in another ledger")
            ledger_id = (await last_segment(log)).ledger_id
            assert await reaching.statuses(ledger_id, fence=True) == {Status.WRONG_KEY}
            assert await reaching.forge(ledger_id, 1, mac) == {Status.WRONG_KEY}
        await (await Log.open("log", uri=made.uri)).close()  # a takeover has the key
        expected = [b"secret 0", b"secret 1", b"secret 2", b"undisturbed", b"in another ledger"]
        assert await values(made) == expected


async def test_each_ledger_has_a_secret_of_its_own_that_nothing_shows() -> None:
    async with cluster(3) as made:
        client = await LedgerClient.connect(made.uri, PATIENT)
        writers = [await client.create(), await client.create()]
        metadata = [await client.describe(writer.ledger_id) for writer in writers]
        one, other = metadata
        assert len({one.secret, other.secret, one.access_key, other.access_key, NOTHING}) == 5
        assert len(one.secret) == 32
        assert one.access_key == access_key(one.secret)
        credentials = client._credentials(writers[0].ledger_id, one, b"")
        shown = f"{one!r} {credentials!r} {LacQuery(1, one.access_key)!r}"
        for hidden in (one.secret, one.access_key):
            assert repr(hidden) not in shown
            assert hidden.hex() not in shown
        with pytest.raises(WrongPassword):
            await client.open_no_recovery(writers[0].ledger_id, password=b"guess")
        for writer in writers:
            await writer.close()
        await client.close()


async def test_a_ledger_with_a_password_has_no_secret() -> None:
    async with cluster(3) as made:
        client = await LedgerClient.connect(made.uri, PATIENT)
        writer = await client.create(password=b"mine", digest=Digest.HMAC_SHA256)
        await writer.add(b"one")
        await writer.close()
        metadata = await client.describe(writer.ledger_id)
        assert (metadata.secret, metadata.access_key) == (b"", access_key(b"mine"))
        with pytest.raises(WrongPassword):
            await client.open(writer.ledger_id)
        reader = await client.open(writer.ledger_id, password=b"mine")
        assert bytes((await reader.read(0, 0))[0].payload) == b"one"
        await client.close()


@pytest.mark.parametrize("digest", list(Digest))
async def test_a_log_from_before_there_were_secrets_goes_on_with_them(digest: Digest) -> None:
    async with cluster(3) as made, stranger(made) as reaching:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ledger.client.SECRET_BYTES", 0)
            settings = LogSettings(digest=digest)
            old = await Log.open("log", uri=made.uri, settings=settings)
            await old.append(b"old")
            first = await last_segment(old)
        assert Status.OK in await reaching.statuses(first.ledger_id, fence=False)
        assert (await old.append(b"still the old ledger")).offset == 1
        await old.roll()  # what it opens from now on has a secret
        await old.append(b"new")
        second = await last_segment(old)
        assert await reaching.statuses(second.ledger_id, fence=True) == {Status.WRONG_KEY}
        await old.abandon()
        async with await Log.open("log", uri=made.uri) as log:
            await log.append(b"newer")
        expected = [b"old", b"still the old ledger", b"new", b"newer"]
        assert await values(made) == expected


async def test_a_takeover_recovers_the_open_ledger_of_a_log_without_secrets() -> None:
    async with cluster(3) as made:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ledger.client.SECRET_BYTES", 0)
            old = await Log.open("log", uri=made.uri)
            await asyncio.gather(*(old.append(b"%d" % i) for i in range(5)))
            await old.abandon()
        async with await Log.open("log", uri=made.uri) as log:
            assert (await log.append(b"new")).offset == 5
        assert sorted((await values(made))[:5]) == [b"%d" % i for i in range(5)]
