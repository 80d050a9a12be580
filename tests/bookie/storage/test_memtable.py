from hypothesis import given
from hypothesis import strategies as st

from bookie.pieces import FoundPieces, limit, merge, whole
from bookie.storage.memtable import LedgerEntries
from ledger.entry import Checked, check_frames
from tests.bookie.promises import frame_of, run_of

Runs = list[set[int]]


def checked(*entries: int) -> Checked:
    run = run_of(5, *entries)
    outcome = check_frames(5, run.entries, run.lengths, run.frames)
    assert isinstance(outcome, Checked)
    return outcome


def ids(found: FoundPieces) -> list[int]:
    return [entry for piece in found.pieces for entry in piece.entries]


def test_runs_in_order_are_kept_as_they_came() -> None:
    ledger = LedgerEntries()
    ledger.add(checked(0, 2, 4), None)
    ledger.add(checked(6, 8), None)
    assert [list(piece.entries) for piece in ledger.pieces()] == [[0, 2, 4], [6, 8]]
    assert ledger.frame(8) == frame_of(5, 8)
    assert ledger.frame(3) is None
    assert ledger.frame(9) is None


def test_an_answer_ends_where_its_bytes_end_and_says_so() -> None:
    ledger = LedgerEntries()
    ledger.add(checked(1, 3, 5, 7), None)
    two = len(frame_of(5, 1)) + len(frame_of(5, 3))
    assert ids(ledger.find(0, 100, two)) == [1, 3]
    assert ledger.find(0, 100, two).considered == 4
    assert ids(ledger.find(0, 100, 1)) == [1]
    assert ledger.find(0, 100, 1).considered == 2
    assert ledger.find(6, 6, 1) == FoundPieces([], 6)


def test_a_first_entry_larger_than_the_answer_comes_alone() -> None:
    found = limit([whole(checked(1)), whole(checked(2))], 10, 1)
    assert ids(found) == [1]
    assert found.considered == 1


@given(st.lists(st.sets(st.integers(0, 40), min_size=1), max_size=8), st.data())
def test_it_answers_like_a_dictionary(runs: Runs, data: st.DataObject) -> None:
    ledger = LedgerEntries()
    known: dict[int, bytes] = {}
    for run in runs:
        entries = sorted(run)
        new = data.draw(st.sampled_from([None, [0], list(range(len(entries)))]))
        ledger.add(checked(*entries), new)
        taken = entries if new is None else [entries[index] for index in new]
        known.update((entry, frame_of(5, entry)) for entry in taken)
    for entry in range(42):
        assert ledger.frame(entry) == known.get(entry)
    first, last = sorted(data.draw(st.tuples(st.integers(0, 42), st.integers(0, 42))))
    found = ledger.find(first, last, data.draw(st.integers(1, 1500)))
    assert ids(found) == [entry for entry in sorted(known) if first <= entry <= found.considered]
    if any(first <= entry <= last for entry in known):
        assert found.pieces
    else:
        assert found.considered == last
    assert b"".join(piece.view() for piece in ledger.pieces()) == b"".join(
        known[entry] for entry in sorted(known)
    )


def test_of_overlapping_pieces_each_entry_is_taken_once() -> None:
    pieces = [whole(checked(1, 4, 6)), whole(checked(4, 5))]
    assert ids(FoundPieces(merge(pieces), 10)) == [1, 4, 5, 6]
