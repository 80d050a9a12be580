"""Given entries are read from one bookie: each comes, or has a fault that says why, or is left."""

import pytest

from ledger.checking import ReplicaFault
from ledger.entry import Digest, WithoutKey, encode_frame
from ledger.protocol.answers import verified
from ledger.protocol.fetching import Fetch
from ledger.quorum import Quorum
from ledger.requests import ReadAnswer, Status

QUORUM = Quorum(3, 3, 2)
MISSING, DAMAGED = ReplicaFault.MISSING, ReplicaFault.DAMAGED


def frame(entry_id: int) -> bytes:
    return encode_frame(
        ledger_id=1, entry_id=entry_id, last_add_confirmed=entry_id - 1, length=1, payload=b"x"
    )


SIZE = len(frame(0))


class FakeBookie:
    """Answers reads as a bookie does; *damaged* entries come damaged, *broken* ones not at all."""

    def __init__(
        self,
        *held: int,
        damaged: tuple[int, ...] = (),
        broken: tuple[int, ...] = (),
        limbo: bool = False,
    ) -> None:
        self.held, self.damaged, self.broken, self.limbo = held, damaged, broken, limbo
        self.asked: list[tuple[int, int]] = []

    def read(self, first: int, last: int, bytes_max: int) -> ReadAnswer:
        self.asked.append((first, last))
        found, considered = list[int](), last
        for entry_id in range(first, last + 1):
            if entry_id in self.broken:
                considered = entry_id - 1
                break
            if entry_id in self.held:
                if found and (len(found) + 1) * SIZE > bytes_max:
                    considered = entry_id - 1
                    break
                found.append(entry_id)
        if considered < first and not found and self.broken:
            return ReadAnswer(Status.IO_ERROR)
        status = Status.OK
        if self.limbo:
            considered = first - 1
            while considered + 1 in found:
                considered += 1
            status = Status.OK if considered >= first else Status.UNKNOWN
        frames = [bytearray(frame(entry_id)) for entry_id in found]
        for at, entry_id in enumerate(found):
            frames[at][-1] ^= entry_id in self.damaged
        return ReadAnswer(status, found, [SIZE] * len(found), b"".join(frames), considered)


def fetch(
    bookie: FakeBookie, *entries: int, quorum: Quorum = QUORUM, bytes_max: int = 1 << 20
) -> Fetch:
    fetching = Fetch(entries, index=0, quorum=quorum, bytes_max=bytes_max)
    while (asked := fetching.ask()) is not None:
        answer = bookie.read(*asked)
        fetching.took(verified(answer, 1, WithoutKey(Digest.CRC32C)))
        assert len(bookie.asked) <= 2 * len(entries)
    done = [*fetching.frames, *fetching.faults, *fetching.rest]
    assert sorted(done) == list(entries), "each entry is in one place"
    return fetching


def test_what_is_wanted_is_read_in_stretches_and_nothing_else() -> None:
    bookie = FakeBookie(*range(20))
    found = fetch(bookie, 3, 4, 5, 9)
    assert bookie.asked == [(3, 5), (9, 9)]
    assert found.frames == {entry_id: frame(entry_id) for entry_id in (3, 4, 5, 9)}
    assert found.headers[9].entry_id == 9


def test_a_striped_share_is_one_stretch() -> None:
    bookie = FakeBookie(0, 3, 4, 7, 8)
    assert not fetch(bookie, 0, 3, 4, 7, 8, quorum=Quorum(4, 2, 2)).faults
    assert bookie.asked == [(0, 8)]


def test_what_is_missing_or_damaged_does_not_hide_the_others() -> None:
    found = fetch(FakeBookie(0, 1, 3, 4, 6, 7, damaged=(4,), broken=(6,)), *range(8))
    assert list(found.frames) == [0, 1, 3, 7]
    assert found.faults == {
        2: MISSING,
        4: DAMAGED,
        5: MISSING,
        6: ReplicaFault.UNREADABLE,
    }


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (Status.UNREACHABLE, ReplicaFault.UNREACHABLE),
        (Status.TOO_MANY_REQUESTS, ReplicaFault.UNREACHABLE),
        (Status.NO_SUCH_LEDGER, MISSING),
        (Status.WRONG_KEY, ReplicaFault.REFUSED),
        (Status.BAD_REQUEST, ReplicaFault.REFUSED),
    ],
)
def test_one_answer_for_the_whole_ledger_is_for_each_entry(
    status: Status, fault: ReplicaFault
) -> None:
    fetching = Fetch([1, 2, 7], index=0, quorum=QUORUM, bytes_max=1)
    assert fetching.ask() == (1, 2, 1)
    fetching.took(verified(ReadAnswer(status), 1, None))
    assert fetching.ask() is None
    assert fetching.faults == dict.fromkeys((1, 2, 7), fault)


def test_a_bookie_in_limbo_gives_what_it_has_and_misses_nothing() -> None:
    found = fetch(FakeBookie(0, 1, 4, 9, limbo=True), *range(8))
    assert list(found.frames) == [0, 1, 4]
    assert found.faults == dict.fromkeys((2, 3, 5, 6, 7), ReplicaFault.REFUSED)
    rotten = fetch(FakeBookie(1, 3, 5, damaged=(3,), limbo=True), *range(8))
    assert list(rotten.frames) == [1, 5]
    assert rotten.faults.pop(3) is DAMAGED
    assert rotten.faults == dict.fromkeys((0, 2, 4, 6, 7), ReplicaFault.REFUSED)


def test_a_share_is_read_up_to_so_many_bytes_and_the_rest_is_named() -> None:
    found = fetch(FakeBookie(*range(20)), *range(10), bytes_max=3 * SIZE)
    assert list(found.frames) == [0, 1, 2]
    assert found.rest == list(range(3, 10))
    assert list(fetch(FakeBookie(*range(20)), 5, 6, bytes_max=1).frames) == [5], "one at least"
