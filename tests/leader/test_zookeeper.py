"""Elections between real processes on a real ZooKeeper."""

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest

from dlog.local.zookeeper import ManagedZooKeeper
from leader import campaign, current_leader
from ledger.metastore import open_store
from tests.leader.members import LOG, Member, number, wait_for_candidates
from tests.zookeeper import fresh_uri

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper]

SESSION_S = 6.0


@pytest.fixture
def uri(zookeeper: ManagedZooKeeper) -> str:
    return fresh_uri(zookeeper)


@pytest.fixture
def pair(uri: str) -> Iterator[tuple[Member, Member]]:
    """The leader, and who stands behind it."""
    first = Member(uri, "first", SESSION_S)
    second = None
    try:
        first.expect("elected")
        second = Member(uri, "second", SESSION_S)
        asyncio.run(wait_for_candidates(uri, 2))
        yield first, second
    finally:
        for member in filter(None, (first, second)):
            member.end()


def test_after_the_leader_is_killed_the_next_leads_before_the_session_ends(
    pair: tuple[Member, Member],
) -> None:
    """The kernel closes the lifeline of the dead at once; ZooKeeper waits for the session."""
    first, second = pair
    first.expect("followed")
    killed_at = time.monotonic()
    first.send(signal.SIGKILL)
    elected = second.expect("elected")
    assert number(elected, "at") - killed_at < SESSION_S / 2


def test_a_leader_that_died_before_anybody_stood_behind_it_is_not_waited_for(uri: str) -> None:
    first = Member(uri, "first", SESSION_S)
    second = None
    try:
        first.expect("elected")
        first.send(signal.SIGKILL)
        first.process.wait()
        second = Member(uri, "second", SESSION_S)
        stood_at = number(second.expect("standing"), "at")
        assert number(second.expect("elected"), "at") - stood_at < SESSION_S / 2
    finally:
        for member in filter(None, (first, second)):
            member.end()


def test_a_leader_that_was_stopped_knows_at_once_when_it_wakes(pair: tuple[Member, Member]) -> None:
    first, second = pair
    first.send(signal.SIGSTOP)
    elected_at = number(second.expect("elected"), "at")
    first.send(signal.SIGCONT)
    assert number(first.expect("doubted"), "believed_at") < elected_at
    assert first.expect("lost")["verified"] is False


def test_a_resignation_hands_over_at_once_with_a_larger_epoch(uri: str) -> None:
    async def run() -> None:
        first, second = await open_store(uri), await open_store(uri)
        term = await campaign(first, LOG, candidate="first")
        waiting = asyncio.create_task(campaign(second, LOG, candidate="second"))
        await wait_for_candidates(uri, 2)
        assert await term.verify()
        resigned_at = time.monotonic()
        await term.resign()
        following = await waiting
        assert time.monotonic() - resigned_at < 1.0
        assert following.epoch > term.epoch
        leader = await current_leader(first, LOG)
        assert leader is not None
        assert leader.candidate == "second"
        await following.resign()
        await first.close()
        await second.close()

    asyncio.run(run())
