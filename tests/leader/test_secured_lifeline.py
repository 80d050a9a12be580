"""A lifeline with TLS: its followers learn the same, and nobody else learns anything."""

import asyncio
from pathlib import Path

import pytest

from leader import lifeline as lifeline_module
from leader.lifeline import Lifeline, has_died
from leader.record import CandidateRecord
from ledger.security.certificates import Security
from tests.certificates import authority, certificate, put
from tests.waiting import PATIENCE_S, until

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline_module, "CONNECT_S", PATIENCE_S)


@pytest.fixture
def security(tmp_path: Path) -> Security:
    # For servers, too, as others connect to it; of a name that is not that of its address.
    issued = certificate("member", hosts=("elsewhere.example",))
    return Security(put(tmp_path / "member", issued))


async def test_the_end_of_a_process_with_tls_is_noticed(security: Security) -> None:
    async with asyncio.timeout(PATIENCE_S):
        lifeline = Lifeline.open(HOST, security)
        watching = asyncio.create_task(has_died(lifeline.address, security=security))
        await until(lambda: lifeline.followers == 1, "it is followed")
        assert not watching.done(), "it lives"
        lifeline.close()
        assert await watching


async def test_who_has_no_certificate_of_ours_learns_nothing(
    security: Security, tmp_path: Path
) -> None:
    foreign = put(tmp_path / "other", certificate("x", by="other"), ca=authority("other"))
    async with asyncio.timeout(PATIENCE_S):
        lifeline = Lifeline.open(HOST, security)
        assert not await has_died(lifeline.address, security=Security(foreign))
        assert not await has_died(lifeline.address)
        assert lifeline.followers == 0
        lifeline.close()


async def test_a_plain_lifeline_is_not_used_where_tls_is_required(security: Security) -> None:
    async with asyncio.timeout(PATIENCE_S):
        lifeline = Lifeline.open(HOST)
        assert not await has_died(lifeline.address, security=security)
        lifeline.close()
        assert await has_died(lifeline.address, security=security), "that a port refuses is known"


async def test_the_node_of_a_candidate_says_that_its_lifeline_has_tls(security: Security) -> None:
    lifeline = Lifeline.open(HOST, security)
    record = CandidateRecord("a", 1, lifeline.address)
    lifeline.close()
    assert CandidateRecord.decode(record.encode(), path="/a").lifeline == lifeline.address
    assert lifeline.address.tls
