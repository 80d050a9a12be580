"""Which copies a bookie takes from a client that may not add: a table, by what the store says."""

from dataclasses import replace

import pytest

from bookie.server.authorizer import CopyEvidence
from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.quorum import Quorum
from ledger.repair_marks import RepairLock
from tests.bookie.runs import run_of

ME, OTHER, THIRD, NEW = map(BookieId, ("me", "other", "third", "new"))
WHO = "uri:dlog:bookie:copier"
LOCK = RepairLock("host:1", "token", ("cn:x", WHO), (ME,))
OPEN = LedgerMetadata(
    quorum=Quorum(3, 2, 2),
    fragments=(
        Fragment(EntryId(0), (ME, OTHER, THIRD)),
        Fragment(EntryId(10), (NEW, OTHER, THIRD)),
    ),
    access_key=b"k" * 16,
)
CLOSED = OPEN.closed(EntryId(20), length=1)
SHORT = OPEN.closed(EntryId(5), length=1)
"""Closed within its first fragment: the second has nothing in it."""


@pytest.mark.parametrize(
    ("metadata", "entries", "is_taken"),
    [
        # 0 and 2 modulo 3 are ours in the first fragment, and any in one that a bookie moves into
        (OPEN, [0], True),
        (OPEN, [0, 2, 3, 5, 6, 8, 9], True),
        (OPEN, [1], False),
        (OPEN, [0, 1, 2], False),
        (OPEN, [10], False),
        (OPEN, [9, 10], False),
        (CLOSED, [9, 10, 11, 12, 20], True),
        (CLOSED, [20, 21], False),
        (CLOSED, [21], False),
        (CLOSED, [4, 12], False),
        (SHORT, [5], True),
        (SHORT, [6], False),
        (SHORT, [10], False),
        (SHORT, [12], False),
        (CLOSED, [-1], False),
    ],
)
def test_a_copy_is_taken_if_it_is_settled_and_ours(
    metadata: LedgerMetadata, entries: list[int], is_taken: bool
) -> None:
    run = replace(run_of(0), entries=entries)
    assert (CopyEvidence(metadata, LOCK).why_not(run, ME, WHO) == "") is is_taken


@pytest.mark.parametrize(
    ("lock", "reason"),
    [
        (None, "nobody repairs the ledger"),
        (replace(LOCK, identities=()), "with another certificate"),
        (replace(LOCK, identities=("cn:copier", WHO + "2")), "with another certificate"),
        (replace(LOCK, targets=()), "does not copy to bookie me"),
        (replace(LOCK, targets=(OTHER,)), "does not copy to bookie me"),
    ],
)
def test_a_copy_is_taken_of_nobody_but_who_the_lock_names_for_this_bookie(
    lock: RepairLock | None, reason: str
) -> None:
    run = replace(run_of(0), entries=[0])
    assert reason in CopyEvidence(CLOSED, lock).why_not(run, ME, WHO)


def test_a_lock_gives_back_what_was_put_in() -> None:
    assert RepairLock.decode(LOCK.encode(), "/x") == LOCK
