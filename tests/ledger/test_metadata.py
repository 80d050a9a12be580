from dataclasses import replace

import pytest

from ledger.entry import Digest
from ledger.errors import DamagedMetadata
from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.quorum import Quorum
from ledger.wire import metadata_pb2 as pb

A, B, C, D = (BookieId(name) for name in "abcd")
OPEN = LedgerMetadata(
    quorum=Quorum(3, 3, 2),
    fragments=(Fragment(EntryId(0), (A, B, C)), Fragment(EntryId(12), (D, B, C))),
    digest=Digest.HMAC_SHA256,
    access_key=b"k" * 16,
    custom={"log": b"flights", "segment": b"3"},
    creation_token=b"token",
    created_ms=123,
)


OLD = bytes.fromhex("0801100118012001280130ffffffffffffffffff0140014a036b65795203120162680b")
"""A ledger on one bookie, as programs wrote it that knew no secrets."""


def test_metadata_gives_back_what_was_put_in() -> None:
    secret = replace(OPEN, secret=b"s" * 32)
    for metadata in (OPEN, OPEN.in_recovery(), OPEN.closed(EntryId(40), 999), secret):
        assert LedgerMetadata.decode(metadata.encode(), path="/x") == metadata
    assert LedgerMetadata.decode(secret.encode(), path="/x").in_recovery().secret == b"s" * 32


def test_metadata_of_before_there_were_secrets_are_read_and_written_as_they_were() -> None:
    old = LedgerMetadata.decode(OLD, path="/x")
    assert (old.access_key, old.secret, old.created_ms) == (b"key", b"", 11)
    assert old.encode() == OLD


def test_only_a_ledger_with_a_secret_is_of_a_version_that_older_programs_refuse() -> None:
    """They would lose the secret when they change the ledger."""
    assert pb.LedgerNode.FromString(OPEN.encode()).version == 1
    assert pb.LedgerNode.FromString(replace(OPEN, secret=b"s").encode()).version == 2


def test_an_entry_belongs_to_the_last_fragment_that_begins_at_or_before_it() -> None:
    assert OPEN.fragment_of(0).bookies == (A, B, C)
    assert OPEN.fragment_of(11).bookies == (A, B, C)
    assert OPEN.fragment_of(12).bookies == (D, B, C)


def test_a_change_at_the_start_of_the_last_fragment_replaces_it() -> None:
    changed = OPEN.with_ensemble(EntryId(12), (A, B, D))
    assert changed.fragments == (OPEN.fragments[0], Fragment(EntryId(12), (A, B, D)))
    appended = OPEN.with_ensemble(EntryId(13), (A, B, D))
    assert [f.first_entry for f in appended.fragments] == [0, 12, 13]


def test_fragments_out_of_order_cannot_be_made() -> None:
    with pytest.raises(AssertionError, match="strictly ordered"):
        OPEN.with_ensemble(EntryId(5), (A, B, D))


def test_closed_is_terminal() -> None:
    closed = OPEN.closed(EntryId(40), 1)
    with pytest.raises(AssertionError):
        closed.in_recovery()
    with pytest.raises(AssertionError):
        closed.closed(EntryId(41), 1)


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff\xff\xff", b"\x08\x63", replace(OPEN, custom={}).encode()[:30]],
    ids=["empty", "noise", "future version", "cut"],
)
def test_damaged_metadata_is_a_typed_error(value: bytes) -> None:
    with pytest.raises(DamagedMetadata, match="/ledgers/x"):
        LedgerMetadata.decode(value, path="/ledgers/x")


def test_the_state_of_an_empty_closed_ledger_is_kept() -> None:
    closed = OPEN.closed(EntryId(-1), 0)
    back = LedgerMetadata.decode(closed.encode(), path="/x")
    assert back.state is LedgerState.CLOSED
    assert back.last_entry == -1
