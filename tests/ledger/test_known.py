"""What a reader knows of its ledger never goes back."""

from ledger.ids import NO_ENTRY, BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.quorum import Quorum
from ledger.reader import ReaderState

OPEN = LedgerMetadata(quorum=Quorum(1, 1, 1), fragments=(Fragment(EntryId(0), (BookieId("b1"),)),))
CLOSED = OPEN.closed(EntryId(4), 50)


def test_a_late_reply_does_not_open_a_closed_ledger_again() -> None:
    known = ReaderState(7, OPEN)
    known.learn(CLOSED)
    known.learn(OPEN)
    assert known.closed
    assert known.last_add_confirmed == 4


def test_a_lower_last_add_confirmed_is_old_news() -> None:
    known = ReaderState(7, OPEN)
    assert known.last_add_confirmed == NO_ENTRY
    known.learn_confirmed(3)
    known.learn_confirmed(2)
    assert known.last_add_confirmed == 3


def test_what_a_closed_ledger_was_said_to_have_confirmed_beyond_its_end_is_not_in_it() -> None:
    known = ReaderState(7, OPEN)
    known.learn_confirmed(9)
    known.learn(CLOSED)
    assert known.last_add_confirmed == 4
