"""What a reader believes of an answer, and what it says about the bookie that gave it."""

import pytest

from ledger.entry import encode_frame, encode_lac, mac_key
from ledger.ids import BookieId
from ledger.protocol import recovery_events
from ledger.protocol.answers import (
    Fault,
    Found,
    RepairHint,
    fence_is_certain,
    proven_lac,
    repair_hints,
    verified,
)
from ledger.quorum import Quorum
from ledger.requests import LacAnswer, ReadAnswer, Status

B = BookieId("b")
MAC = mac_key(b"secret")


def frame(entry_id: int, *, mac: bytes | None = None, payload: bytes = b"abc") -> bytes:
    return encode_frame(
        ledger_id=1,
        entry_id=entry_id,
        last_add_confirmed=entry_id - 1,
        length=3 * (entry_id + 1),
        payload=payload,
        mac=mac,
    )


def answer(*frames: bytes, considered: int = 9) -> ReadAnswer:
    ids = list(range(len(frames)))
    lengths = [len(each) for each in frames]
    return ReadAnswer(Status.OK, ids, lengths, b"".join(frames), considered)


def hints(
    found: Found, *, confirmed: int = 9, index: int = 0, quorum: Quorum | None = None
) -> tuple[RepairHint, ...]:
    return repair_hints(
        found,
        bookie=B,
        index=index,
        asked=range(10),
        confirmed=confirmed,
        quorum=quorum or Quorum(3, 3, 2),
    )


def test_a_frame_whose_bytes_changed_is_an_error_and_not_an_absence() -> None:
    """Rule 54."""
    damaged = bytearray(frame(1))
    damaged[-1] ^= 1
    found = verified(answer(frame(0), bytes(damaged), frame(2)), 1, None)
    assert list(found.frames) == [0]
    assert (found.damaged, found.considered) == (1, 0)
    assert hints(found) == (RepairHint(B, Fault.DAMAGED, 1),)


def test_a_frame_with_a_right_checksum_but_without_the_password_is_damage() -> None:
    """A bookie, or who can write to its disk, can make a checksum but no authentication code."""
    forged = frame(1, mac=mac_key(b"guess"), payload=b"xyz")
    for bad in (forged, frame(1, payload=b"xyz")):
        found = verified(answer(frame(0, mac=MAC), bad), 1, MAC)
        assert list(found.frames) == [0]
        assert (found.damaged, found.considered) == (1, 0)
        assert found.last_add_confirmed == -1


def test_confirmed_entries_that_the_bookie_should_hold_and_does_not_are_missing() -> None:
    found = verified(answer(frame(0), frame(1)), 1, None)
    assert hints(found, confirmed=4) == (RepairHint(B, Fault.MISSING, 2, 3),)
    assert hints(found, confirmed=1) == ()


def test_entries_of_other_write_sets_are_not_missing() -> None:
    """Index 0 of E = 4, Qw = 2 holds 0, 3, 4, 7, 8."""
    found = Found(Status.OK, considered=8)
    assert hints(found, quorum=Quorum(4, 2, 2)) == (RepairHint(B, Fault.MISSING, 0, 5),)
    assert hints(found, index=2, confirmed=0, quorum=Quorum(4, 2, 2)) == ()


def test_a_bookie_that_never_heard_of_the_ledger_misses_all_of_it() -> None:
    found = verified(ReadAnswer(Status.NO_SUCH_LEDGER), 1, None)
    assert hints(found, confirmed=4) == (RepairHint(B, Fault.MISSING, 0, 5),)


def test_an_error_says_nothing_about_replicas() -> None:
    found = verified(ReadAnswer(Status.IO_ERROR, considered=-1), 1, None)
    assert hints(found) == ()


def test_only_so_many_entries_are_looked_at() -> None:
    found = Found(Status.NO_SUCH_LEDGER)
    (hint,) = repair_hints(
        found, bookie=B, index=0, asked=range(1 << 62), confirmed=1 << 61, quorum=Quorum()
    )
    assert (hint.entry_id, hint.count) == (0, 1024)


@pytest.mark.parametrize("status", list(Status))
def test_a_fence_is_certain_only_if_a_bookie_says_so_and_could_know(status: Status) -> None:
    assert not fence_is_certain(LacAnswer(status, last_entry=7))
    knows = status in {Status.OK, Status.NO_SUCH_LEDGER, Status.FENCED, Status.UNKNOWN}
    assert fence_is_certain(LacAnswer(status, fenced=True)) == knows


@pytest.mark.parametrize("status", list(Status))
def test_a_recovery_takes_for_an_answer_only_what_may_deny(status: Status) -> None:
    asked = recovery_events.SendRecoveryRead(0, B, first=3, last=9, fence=True)
    event = recovery_events.entries_read(asked, Found(status, considered=5, fenced=True))
    assert event.answered == (status in {Status.OK, Status.NO_SUCH_LEDGER})
    assert event.considered == (9 if status is Status.NO_SUCH_LEDGER else 5)
    assert event.unknown == (status is Status.UNKNOWN)
    unfenced = recovery_events.entries_read(asked, Found(status, considered=5))
    assert not unfenced.answered


def test_the_last_add_confirmed_is_the_highest_that_a_verified_frame_carries() -> None:
    assert verified(answer(frame(0), frame(1), frame(2)), 1, None).last_add_confirmed == 1


def test_a_proof_that_is_missing_damaged_or_not_authenticated_proves_nothing() -> None:
    proof = encode_lac(ledger_id=1, last_add_confirmed=7, length=8, mac=None)
    authentic = encode_lac(ledger_id=1, last_add_confirmed=7, length=8, mac=MAC)
    assert proven_lac(proof, 1, None) == proven_lac(authentic, 1, MAC) == 7
    for wrong in (b"", proof[:-1], bytes([proof[0] ^ 1]) + proof[1:]):
        assert proven_lac(wrong, 1, None) == -1
    assert proven_lac(proof, 2, None) == proven_lac(proof, 1, MAC) == -1
