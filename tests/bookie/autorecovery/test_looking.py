"""What a bookie is found to have, by its own word and by reading it all."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.autorecovery import replica_scan
from bookie.autorecovery.protocol.repair_plan import Question, ReplicaState, Share
from bookie.autorecovery.replica_scan import look
from ledger.entry import encode_frame
from ledger.environment import Credentials
from ledger.ids import BookieId, LedgerId
from ledger.quorum import Quorum, holds
from ledger.requests import HeldAnswer, HeldQuery, ReadAnswer, ReadQuery, Status
from ledger.transport.port import BookieTransport

B = BookieId("b")
CREDENTIALS = Credentials(LedgerId(7), b"key", None)
FRAMES = [
    encode_frame(
        ledger_id=7, entry_id=number, last_add_confirmed=number - 1, length=number, payload=b"x"
    )
    for number in range(40)
]


@dataclass
class FakeBookie:
    held: set[int]
    damaged: set[int] = field(default_factory=set)
    """Of those: their bytes cannot be read."""
    vouches_to: int = 1 << 30
    """In limbo: behind it nothing is denied."""
    in_one_answer: int = 3
    is_supported: bool = True
    in_memory: set[int] = field(default_factory=set)
    """It gives them to readers, and they are not durable."""
    silent: int = 0
    """How often it does not answer."""
    asked: int = 0

    async def read_held(self, _: BookieId, query: HeldQuery) -> HeldAnswer:
        self.asked += 1
        if self._is_silent():
            return HeldAnswer(Status.UNREACHABLE)
        if not self.is_supported:
            return HeldAnswer(Status.UNREACHABLE, is_supported=False)
        upto = min(query.last, query.first + self.in_one_answer - 1)
        found = sorted(each for each in self.held if query.first <= each <= upto)
        gaps = [each for each in range(query.first, upto + 1) if each not in found]
        doubtful = [each for each in gaps if each > self.vouches_to]
        considered = min([upto, *(each - 1 for each in doubtful)])
        status = Status.OK if considered >= query.first else Status.UNKNOWN
        return HeldAnswer(status, found, found, considered, upto)

    async def read(self, _: BookieId, query: ReadQuery) -> ReadAnswer:
        self.asked += 1
        if self._is_silent():
            return ReadAnswer(Status.TOO_MANY_REQUESTS)
        upto = min(query.last, query.first + self.in_one_answer - 1)
        damaged = [each for each in self.damaged if query.first <= each <= upto]
        upto = min([upto, *(each - 1 for each in damaged)])
        if upto < query.first:
            return ReadAnswer(Status.IO_ERROR)
        denied = [
            each
            for each in range(query.first, upto + 1)
            if each not in self.held and each > self.vouches_to
        ]
        considered = min([upto, *(each - 1 for each in denied)])
        here = self.held | self.in_memory
        found = sorted(each for each in here if query.first <= each <= upto)
        if considered < query.first:
            return ReadAnswer(Status.UNKNOWN)
        given = [each for each in found if each <= considered]
        frames = [FRAMES[each] for each in given]
        return ReadAnswer(
            Status.OK, given, [len(frame) for frame in frames], b"".join(frames), considered
        )

    def _is_silent(self) -> bool:
        self.silent -= 1
        return self.silent >= 0


async def found(
    bookie: FakeBookie,
    index: int = 0,
    quorum: Quorum | None = None,
    *,
    first: int = 0,
    last: int = 9,
    thorough: bool = False,
) -> Share:
    transport = cast("BookieTransport", bookie)
    question = Question(B, index, first, last)
    return await look(transport, CREDENTIALS, quorum or Quorum(), question, thorough=thorough)


@given(
    st.sampled_from([Quorum(3, 3, 2), Quorum(5, 3, 2), Quorum(3, 1, 1)]),
    st.integers(0, 2),
    st.sets(st.integers(0, 39)),
    st.sets(st.integers(0, 39), max_size=4),
    st.integers(1, 9),
    st.booleans(),
)
def test_it_is_what_the_bookie_holds_of_what_its_index_holds(
    quorum: Quorum, index: int, held: set[int], rotten: set[int], in_one: int, thorough: bool
) -> None:
    bookie = FakeBookie(held, rotten & held, in_one_answer=in_one)
    share = asyncio.run(found(bookie, index, quorum, first=5, last=35, thorough=thorough))
    for entry_id in range(5, 36):
        if holds(index, entry_id, quorum):
            has = entry_id in held and not (thorough and entry_id in bookie.damaged)
            expected = ReplicaState.HELD if has else ReplicaState.MISSING
            assert share.at(entry_id) is expected, entry_id


async def test_a_share_that_is_complete_is_one_range_whatever_its_stripes_are() -> None:
    quorum = Quorum(5, 2, 2)
    held = {entry_id for entry_id in range(40) if holds(1, entry_id, quorum)}
    for thorough in (False, True):
        assert await found(FakeBookie(held), 1, quorum, last=39, thorough=thorough) == Share()


async def test_what_a_bookie_in_limbo_does_not_have_is_unsure_and_what_it_has_is_held() -> None:
    bookie = FakeBookie({0, 1, 2, 7, 8}, vouches_to=2)
    share = await found(bookie)
    assert share.missing == ()
    assert [each for each in range(10) if share.at(each) is ReplicaState.HELD] == [0, 1, 2, 7, 8]


async def test_a_bookie_in_limbo_that_is_read_is_unsure_from_its_first_gap_on() -> None:
    share = await found(FakeBookie({0, 1, 2, 7, 8}, vouches_to=2), thorough=True)
    assert share == Share(unsure=((3, 9),))


@pytest.mark.parametrize("thorough", [False, True])
async def test_what_a_bookie_gives_and_does_not_list_is_missing(thorough: bool) -> None:
    """It is in memory alone, and goes with the process; so there is something to repair."""
    bookie = FakeBookie(set(range(8)), in_memory={8, 9})
    share = await found(bookie, thorough=thorough)
    assert [each for each in range(10) if share.at(each) is ReplicaState.MISSING] == [8, 9]


@pytest.mark.parametrize("thorough", [False, True])
async def test_a_bookie_that_does_not_answer_is_unsure_of_all(
    monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    monkeypatch.setattr(replica_scan, "_ASK_AGAIN_S_MIN", 0.0)
    bookie = FakeBookie({0, 1}, silent=99)
    assert await found(bookie, thorough=thorough) == Share(unsure=((0, 9),))
    assert bookie.asked == replica_scan.ASKS_MAX


async def test_a_bookie_that_is_too_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_scan, "_ASK_AGAIN_S_MIN", 0.0)
    assert await found(FakeBookie(set(range(10)), silent=2)) == Share()


async def test_a_bookie_of_an_older_program_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_scan, "_ASK_AGAIN_S_MIN", 0.0)
    bookie = FakeBookie({0, 1, 2}, is_supported=False)
    assert await found(bookie) == Share(missing=((3, 9),))


async def test_more_gaps_than_are_remembered_leave_the_rest_unsure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_scan, "GAPS_MAX", 4)
    for thorough in (False, True):
        share = await found(FakeBookie(set(range(0, 40, 2))), last=39, thorough=thorough)
        assert len(share.missing) < 8
        assert share.unsure[-1][1] == 39
