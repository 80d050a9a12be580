"""Bookies are asked what they hold of a ledger: real gRPC, real storage."""

import asyncio
from pathlib import Path

import pytest

from bookie.autorecovery.protocol.repair_plan import Question, ReplicaState, Share
from bookie.autorecovery.replica_scan import look
from bookie.server.read_connection import ReadConnection
from ledger.client import LedgerClient
from ledger.entry import Digest
from ledger.environment import repair_credentials
from ledger.ids import BookieId, LedgerId
from ledger.quorum import Quorum, holds
from ledger.transport.framing import FrameKind
from tests.ledger.local_bookies import LocalBookies, local_bookies

STRIPED = Quorum(3, 2, 2)
ENTRIES = 30


async def written(client: LedgerClient) -> LedgerId:
    """A CLOSED ledger with a password; striped, so no two shares are the same."""
    writer = await client.create(STRIPED, password=b"secret", digest=Digest.HMAC_SHA256)
    await asyncio.gather(*(writer.add(b"entry %d" % number) for number in range(ENTRIES)))
    await writer.close()
    return writer.ledger_id


async def share_of(
    client: LedgerClient, ledger_id: LedgerId, index: int, *, thorough: bool
) -> Share:
    metadata = await client.describe(ledger_id)
    return await look(
        client.environment.transport,
        repair_credentials(ledger_id, metadata),
        metadata.quorum,
        Question(metadata.last_fragment.bookies[index], index, 0, ENTRIES - 1),
        thorough=thorough,
    )


def stored(cluster: LocalBookies, bookie: BookieId, ledger_id: LedgerId) -> dict[int, bytes]:
    return cluster.of(bookie).storage.ledgers[ledger_id]


@pytest.mark.parametrize("thorough", [False, True])
async def test_each_member_has_its_share_and_the_password_is_not_needed_to_know(
    tmp_path: Path, *, thorough: bool
) -> None:
    async with local_bookies(3, tmp_path) as cluster:
        client = await cluster.client()
        ledger_id = await written(client)
        for index in range(3):
            assert await share_of(client, ledger_id, index, thorough=thorough) == Share()


async def test_what_is_damaged_is_found_without_the_password_by_reading() -> None:
    async with local_bookies(3) as cluster:
        client = await cluster.client()
        ledger_id = await written(client)
        index = 1
        bookie = (await client.describe(ledger_id)).last_fragment.bookies[index]
        share = [each for each in range(ENTRIES) if holds(index, each, STRIPED)]
        frames = stored(cluster, bookie, ledger_id)
        hash_at = len(frames[share[4]]) - 64
        frames[share[4]] = frames[share[4]][:hash_at] + bytes(64)
        del frames[share[7]]
        found = await share_of(client, ledger_id, index, thorough=True)
        missing = [each for each in share if found.at(each) is ReplicaState.MISSING]
        assert missing == [share[4], share[7]]


async def test_a_bookie_that_is_too_old_to_say_what_it_holds_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer_of = ReadConnection._answer_of

    def older(answering: ReadConnection, kind: int, request: bytes) -> object:
        return None if kind == FrameKind.READ_HELD else answer_of(answering, kind, request)

    monkeypatch.setattr(ReadConnection, "_answer_of", older)
    async with local_bookies(3) as cluster:
        client = await cluster.client()
        ledger_id = await written(client)
        bookie = (await client.describe(ledger_id)).last_fragment.bookies[0]
        del stored(cluster, bookie, ledger_id)[2]
        assert await share_of(client, ledger_id, 0, thorough=False) == Share(missing=((2, 2),))
