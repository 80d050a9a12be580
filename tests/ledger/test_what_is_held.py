"""A client asks bookies what they hold of a ledger: real gRPC, real storage."""

import asyncio
from pathlib import Path

import pytest

from bookie.server.grpc import BookieServer
from ledger.checking import ReplicaFault
from ledger.entry import Digest
from ledger.errors import BookieOutdated, NoSuchLedger
from ledger.ids import BookieId, LedgerId
from ledger.quorum import Quorum, holds
from ledger.requests import Status
from tests.ledger.local_bookies import local_bookies

DEADLINE_S = 60.0


async def test_each_member_lists_its_share_without_the_password(tmp_path: Path) -> None:
    """Striped, so no two shares are the same; whoever repairs knows no password."""
    quorum = Quorum(3, 2, 2)
    async with local_bookies(3, tmp_path) as cluster, asyncio.timeout(DEADLINE_S):
        client = await cluster.client()
        writer = await client.create(quorum, password=b"secret", digest=Digest.HMAC_SHA256)
        await asyncio.gather(*(writer.add(b"entry %d" % number) for number in range(100)))
        metadata = await writer.close()
        for index, bookie in enumerate(metadata.last_fragment.bookies):
            answer = await client.read_held(writer.ledger_id, bookie, 0, 99)
            assert (answer.status, answer.considered) == (Status.OK, 99)
            found = [each for a, b in answer.ranges() for each in range(a, b + 1)]
            assert found == [each for each in range(100) if holds(index, each, quorum)]
            some = await client.read_held(
                writer.ledger_id, bookie, 0, 99, metadata=metadata, ranges_max=2
            )
            assert len(some.firsts) == 2
            assert some.listed < 99


async def test_a_share_is_read_without_the_password_and_what_is_damaged_is_found() -> None:
    quorum = Quorum(3, 2, 2)
    async with local_bookies(3) as cluster, asyncio.timeout(DEADLINE_S):
        client = await cluster.client()
        writer = await client.create(quorum, password=b"secret", digest=Digest.HMAC_SHA256)
        await asyncio.gather(*(writer.add(b"entry %d" % number) for number in range(30)))
        metadata = await writer.close()
        index, bookie = 1, metadata.last_fragment.bookies[1]
        share = [each for each in range(30) if holds(index, each, quorum)]
        stored = cluster.of(bookie).storage.ledgers[writer.ledger_id]
        hash_at = len(stored[share[4]]) - 64
        stored[share[4]] = stored[share[4]][:hash_at] + bytes(64)
        del stored[share[7]]
        fetched = await client.read_entries(writer.ledger_id, bookie, index, share)
        assert fetched.faults == {share[4]: ReplicaFault.DAMAGED, share[7]: ReplicaFault.MISSING}
        assert fetched.rest == []
        other = cluster.of(metadata.last_fragment.bookies[2]).storage.ledgers[writer.ledger_id]
        both = [each for each in fetched.frames if each in other]
        assert both
        assert all(fetched.frames[each] == other[each] for each in both)
        none = await client.read_entries(
            writer.ledger_id, BookieId("nobody"), index, share, metadata=metadata
        )
        assert none.faults == dict.fromkeys(share, ReplicaFault.UNREACHABLE)


async def test_what_cannot_be_asked_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = BookieServer._handlers

    def older(server: BookieServer) -> dict[str, object]:
        return {name: each for name, each in handlers(server).items() if name != "ReadHeld"}

    async with local_bookies(3) as cluster, asyncio.timeout(DEADLINE_S):
        client = await cluster.client()
        writer = await client.create()
        await writer.add(b"one")
        nobody = await client.read_held(writer.ledger_id, BookieId("nobody"), 0, 9)
        assert nobody.status is Status.UNREACHABLE
        with pytest.raises(NoSuchLedger):
            await client.read_held(LedgerId(10**9), BookieId("bookie-0"), 0, 9)
        monkeypatch.setattr(BookieServer, "_handlers", older)
        old = await cluster.add()
        await client.bookies.wait_for(4, DEADLINE_S)
        with pytest.raises(BookieOutdated, match="restart it with this version"):
            await client.read_held(writer.ledger_id, BookieId(old.name), 0, 9)
