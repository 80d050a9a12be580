"""Where the frames of an answer lie."""

from bookie.pieces import Piece, whole
from bookie.storage.reads import _frames
from ledger.entry import Checked, check_frames
from tests.bookie.runs import run_of


def stretch(count: int) -> Checked:
    run = run_of(*range(count), payload=bytes(1000))
    checked = check_frames(7, run.entries, run.lengths, run.frames)
    assert isinstance(checked, Checked)
    return checked


def test_frames_that_lie_together_are_not_copied() -> None:
    run = stretch(8)
    for piece in (whole(run), Piece(run, 3, 5)):
        frames = _frames([piece])
        assert isinstance(frames, memoryview)
        assert frames.obj is run.data
        assert frames == run.data[run.starts[piece.begin] : run.starts[piece.end]]


def test_a_small_part_of_much_does_not_keep_it_alive() -> None:
    run = stretch(8)
    frames = _frames([Piece(run, 3, 4)])
    assert isinstance(frames, bytes)
    assert frames == run.frame(3)


def test_frames_from_several_places_are_put_together() -> None:
    run = stretch(8)
    assert _frames([Piece(run, 0, 4), Piece(run, 4, 8)]) == run.data
    assert _frames([]) == b""
