from array import array

from hypothesis import given
from hypothesis import strategies as st

from ledger.entry import (
    Bad,
    Checked,
    check_frames,
    encode_frame,
    encode_lac,
    trust_frames,
    verify_frame,
)
from ledger.errors import DamagedEntry
from tests.ledger.proofs import proof_of

MAC = b"m" * 32


def frames_of(*entries: int, mac: bytes | None = None, lac: int = -1) -> list[bytes]:
    return [
        encode_frame(
            ledger_id=9,
            entry_id=e,
            last_add_confirmed=lac if lac >= 0 else e - 1,
            length=e,
            payload=b"x" * (e % 50),
            mac=mac,
        )
        for e in entries
    ]


def check(frames: list[bytes], entries: list[int]) -> Checked | Bad:
    return check_frames(9, entries, [len(frame) for frame in frames], b"".join(frames))


def test_whole_frames_are_taken_apart_into_columns() -> None:
    frames = frames_of(3, 5, 60)
    checked = check(frames, [3, 5, 60])
    assert isinstance(checked, Checked)
    assert list(checked.entries) == [3, 5, 60]
    assert [checked.frame(i) for i in range(3)] == frames
    assert checked.last_add_confirmed == 59
    assert checked.proof() == proof_of(frames[2])


def test_the_proof_of_an_authenticated_ledger_keeps_its_code() -> None:
    frames = frames_of(1, 2, mac=MAC)
    checked = check(frames, [1, 2])
    assert isinstance(checked, Checked)
    assert checked.proof() == proof_of(frames[1])


def test_the_highest_lac_is_found_wherever_it_is() -> None:
    """Recovery writes entries back as they were: a later one may carry a lower LAC."""
    frames = [*frames_of(4, lac=3), *frames_of(5, lac=1)]
    checked = check(frames, [4, 5])
    assert isinstance(checked, Checked)
    assert (checked.last_add_confirmed, checked.lac_at) == (3, 0)


def test_an_explicit_lac_is_a_frame_of_its_own() -> None:
    frame = encode_lac(ledger_id=9, last_add_confirmed=8, length=1)
    checked = check([frame], [-1])
    assert isinstance(checked, Checked)
    assert checked.proof() == frame


def test_columns_that_do_not_fit_are_refused() -> None:
    frames = frames_of(1, 2)
    data = b"".join(frames)
    lengths = [len(frame) for frame in frames]
    for entries, columns, blob in (
        ([], [], b""),
        ([1], lengths, data),
        ([1, 2], lengths, data + b"x"),
        ([1, 2], lengths, data[:-1]),
        ([2, 1], lengths[::-1], b"".join(reversed(frames))),
        ([1, 1], [lengths[0]] * 2, frames[0] * 2),
    ):
        outcome = check_frames(9, entries, columns, blob)
        assert isinstance(outcome, Bad)
        assert outcome.index == -1


def test_a_frame_of_another_entry_or_ledger_is_named() -> None:
    assert isinstance(check(frames_of(1, 3), [1, 2]), Bad)
    outcome = check_frames(8, [1], [49], frames_of(1)[0])
    assert outcome == Bad(0, "its header names entry 1 of ledger 9")


@given(st.integers(0, 3), st.data(), st.booleans())
def test_it_says_the_same_as_the_slow_check(entry: int, data: st.DataObject, auth: bool) -> None:
    """Any change of any byte, and any cut, in any frame of a run."""
    frames = frames_of(60, 61, 62, 63, mac=MAC if auth else None)
    frame = bytearray(frames[entry])
    if data.draw(st.booleans()):
        del frame[data.draw(st.integers(0, len(frame) - 1)) :]
    else:
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] ^= data.draw(st.integers(0, 255))
    frames[entry] = bytes(frame)
    try:
        verify_frame(frames[entry], 9, 60 + entry)
        expected = None
    except DamagedEntry:
        expected = entry
    outcome = check(frames, [60, 61, 62, 63])
    assert (outcome.index if isinstance(outcome, Bad) else None) == expected


@given(st.lists(st.integers(0, 60), min_size=1, max_size=20))
def test_frames_that_are_trusted_give_what_checked_ones_give(lacs: list[int]) -> None:
    frames = [frames_of(60 + index, lac=lac)[0] for index, lac in enumerate(lacs)]
    checked = check(frames, list(range(60, 60 + len(frames))))
    assert isinstance(checked, Checked)
    lengths = array("I", map(len, frames))
    assert trust_frames(checked.entries, lengths, checked.data) == checked
