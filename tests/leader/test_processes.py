"""Elections between real processes on the embedded store."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leader import current_leader
from leader.election import leaders_path
from ledger.metastore import open_store
from tests.leader.members import LOG, Member, number, wait_for_candidates
from tests.patience import patient_campaign
from tests.waiting import PATIENCE_S, SESSION_S

pytestmark = pytest.mark.integration

Start = Callable[[str, float], Member]
SHORT_SESSION_S = 10.0
"""Its end is waited for; and it is to bear a machine that stands still before."""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/metadata"


@pytest.fixture
def start(uri: str) -> Iterator[Start]:
    members: list[Member] = []

    def start_one(name: str, session_timeout_s: float) -> Member:
        members.append(Member(uri, name, session_timeout_s))
        return members[-1]

    yield start_one
    for member in members:
        member.end()


def test_after_the_leader_is_killed_the_next_leads_before_its_session_ends(
    uri: str, start: Start
) -> None:
    first = start("first", SESSION_S)
    epoch = number(first.expect("elected"), "epoch")
    second = start("second", SESSION_S)
    asyncio.run(wait_for_candidates(uri, 2))
    killed_at = time.monotonic()
    first.send(signal.SIGKILL)
    elected = second.expect("elected")
    assert number(elected, "at") - killed_at < PATIENCE_S
    assert number(elected, "epoch") > epoch


def test_a_leader_that_was_stopped_knows_at_once_when_it_wakes(uri: str, start: Start) -> None:
    first = start("first", SHORT_SESSION_S)
    first.expect("elected")
    second = start("second", SESSION_S)
    second.expect("standing")
    first.send(signal.SIGSTOP)
    elected_at = number(second.expect("elected"), "at")
    first.send(signal.SIGCONT)
    doubted = first.expect("doubted")
    assert number(doubted, "believed_at") < elected_at, "it did not believe after it woke"
    assert first.expect("lost")["verified"] is False


def test_candidates_that_are_killed_in_line_are_skipped(uri: str, start: Start) -> None:
    members = [start("0", SESSION_S)]
    members[0].expect("elected")
    for index in range(1, 4):
        members.append(start(str(index), SESSION_S))
        asyncio.run(wait_for_candidates(uri, index + 1))
    for member in members[:3]:
        member.send(signal.SIGKILL)
    members[3].expect("elected")


async def test_campaigns_of_one_process_stand_against_each_other_too(uri: str) -> None:
    first, second = [await open_store(uri, session_timeout_s=SESSION_S) for _ in range(2)]
    term = await patient_campaign(first, LOG, candidate="first")
    waiting = asyncio.create_task(patient_campaign(second, LOG, candidate="second"))
    await wait_for_candidates(uri, 2)
    await term.resign()
    async with asyncio.timeout(PATIENCE_S):
        following = await waiting
    leader = await current_leader(first, LOG)
    assert leader is not None
    assert (leader.candidate, leader.epoch) == ("second", following.epoch)
    await following.resign()
    await first.close()
    await second.close()


async def test_a_campaign_cancelled_at_any_moment_leaves_no_node(uri: str) -> None:
    """Also not one whose create was on its way to the disk."""
    store = await open_store(uri, session_timeout_s=SESSION_S, timeout_s=PATIENCE_S)
    await (await patient_campaign(store, LOG)).resign()
    for turns in range(40):
        task = asyncio.create_task(patient_campaign(store, LOG))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        if not isinstance(outcome, BaseException):
            await outcome.resign()
        assert await store.children(leaders_path(LOG)) == []
    await store.close()
