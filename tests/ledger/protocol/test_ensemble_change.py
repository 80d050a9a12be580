"""Who is asked to be replaced, by whom never, and what the new ensemble is."""

from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.protocol.acks import AckTracker
from ledger.protocol.common import ChooseReplacements
from ledger.protocol.ensemble_change import EnsembleChange
from ledger.quorum import Quorum
from ledger.requests import Status

A, B, C, D, E = (BookieId(name) for name in "abcde")
METADATA = LedgerMetadata(quorum=Quorum(3, 3, 2), fragments=(Fragment(EntryId(0), (A, B, C)),))


def tracker(confirmed: int = 4) -> AckTracker:
    return AckTracker(METADATA.quorum, (A, B, C), confirmed=confirmed)


def test_whoever_failed_is_asked_to_be_replaced_and_not_picked_again() -> None:
    change = EnsembleChange(tracker())
    change.fail(2, Status.UNREACHABLE)
    change.replacing = {2: D}
    change.put()
    change.fail(2, Status.UNREACHABLE)
    change.fail(0, Status.IO_ERROR)
    assert change.choose() == ChooseReplacements((0, 2), (A, B, D, C), (A, B, D))
    change.end()
    assert change.choose() == ChooseReplacements((0, 2), (A, B, D), (A, B, D))


def test_the_new_fragment_begins_right_behind_what_is_confirmed() -> None:
    """Rule 19."""
    change = EnsembleChange(tracker())
    change.fail(1, Status.UNREACHABLE)
    change.replacing = {1: E}
    assert change.changed(METADATA).fragments == (
        *METADATA.fragments,
        Fragment(EntryId(5), (A, E, C)),
    )


def test_those_picked_get_their_places_with_nothing_stored() -> None:
    """Rule 22; whoever failed meanwhile and was not replaced is still to be."""
    acks = tracker()
    acks.stored(0, 0, 5, 9)
    change = EnsembleChange(acks)
    change.fail(0, Status.UNREACHABLE)
    change.replacing = {0: D}
    change.fail(2, Status.UNREACHABLE)
    assert change.put() == [0]
    assert acks.bookies == (D, B, C)
    assert 5 not in acks.slots[0].stored
    assert not acks.is_current(0, 0)
    assert change.failed == {2: Status.UNREACHABLE}


def test_who_was_picked_gets_the_place_once() -> None:
    acks = tracker()
    change = EnsembleChange(acks)
    change.fail(0, Status.UNREACHABLE)
    change.replacing = {0: D}
    assert change.put() == [0]
    acks.stored(0, 1, 5, 9)
    assert change.put() == []
    assert 5 in acks.slots[0].stored
    assert change.changed(METADATA).fragments[-1].bookies == (D, B, C)


def test_a_revived_bookie_keeps_its_place_and_owes_everything() -> None:
    """Rule 27."""
    acks = tracker()
    acks.stored(1, 0, 5, 9)
    change = EnsembleChange(acks)
    change.fail(1, Status.UNREACHABLE)
    assert change.revive() == [1]
    assert acks.bookies == (A, B, C)
    assert not acks.slots[1].down
    assert 5 not in acks.slots[1].stored
    assert not change.failed
