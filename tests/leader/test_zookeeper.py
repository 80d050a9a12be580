"""Elections between real processes on a real ZooKeeper."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from dlog.local.zookeeper import ManagedZooKeeper
from leader import current_leader
from ledger.metastore import open_store
from tests.leader.members import LOG, Member, number, wait_for_candidates
from tests.patience import patient_campaign
from tests.waiting import PATIENCE_S, SESSION_S
from tests.zookeeper import fresh_uri

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper]


@pytest.fixture
def uri(zookeeper: ManagedZooKeeper) -> str:
    return fresh_uri(zookeeper)


@pytest.fixture
def two(uri: str) -> Iterator[Callable[[float, float], tuple[Member, Member]]]:
    """Starts the leader, and who will stand behind it; takes their session timeouts."""
    members: list[Member] = []

    def start(first_s: float, second_s: float) -> tuple[Member, Member]:
        first = Member(uri, "first", first_s)
        members.append(first)
        first.expect("elected")
        second = Member(uri, "second", second_s)
        members.append(second)
        return first, second

    yield start
    for member in members:
        member.end()


def test_after_the_leader_is_killed_the_next_leads_before_the_session_ends(
    uri: str, two: Callable[[float, float], tuple[Member, Member]]
) -> None:
    """The kernel closes the lifeline of the dead at once; ZooKeeper waits for the session."""
    first, second = two(SESSION_S, SESSION_S)
    asyncio.run(wait_for_candidates(uri, 2))
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


def test_a_leader_that_was_stopped_knows_at_once_when_it_wakes(
    two: Callable[[float, float], tuple[Member, Member]],
) -> None:
    first, second = two(6.0, SESSION_S)
    second.expect("standing")
    first.send(signal.SIGSTOP)
    elected_at = number(second.expect("elected"), "at")
    first.send(signal.SIGCONT)
    assert number(first.expect("doubted"), "believed_at") < elected_at
    assert first.expect("lost")["verified"] is False


async def test_a_resignation_hands_over_at_once_with_a_larger_epoch(uri: str) -> None:
    first, second = [await open_store(uri, session_timeout_s=SESSION_S) for _ in range(2)]
    term = await patient_campaign(first, LOG, candidate="first")
    waiting = asyncio.create_task(patient_campaign(second, LOG, candidate="second"))
    await wait_for_candidates(uri, 2)
    assert await term.verify()
    await term.resign()
    async with asyncio.timeout(PATIENCE_S):
        following = await waiting
    assert following.epoch > term.epoch
    leader = await current_leader(first, LOG)
    assert leader is not None
    assert leader.candidate == "second"
    await following.resign()
    await first.close()
    await second.close()
