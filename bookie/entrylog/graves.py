"""Graves: what compaction writes in place of an entry whose only copy here is damaged.

A log with a damaged frame must not stay for ever, and the entry must not become a "no such entry"
when the log goes (rule 58). So the index points to a grave from then on: a whole frame without
payload that names the entry, under the complement of its ledger's id, which is nobody's. Who
reads the entry finds another one's frame there, which is damage; who scans the log sees whose
grave it is.
So graves are moved on by later compactions and found by a rebuild of the index, until the ledger
is deleted or a recovery adds the entry again.
"""

from bookie.pieces import Piece, whole
from ledger.entry import Checked, check_frames, encode_frame
from ledger.ids import NO_ENTRY


def grave_of(ledger_id: int, entry_id: int) -> Piece:
    frame = encode_frame(
        ledger_id=~ledger_id, entry_id=entry_id, last_add_confirmed=NO_ENTRY, length=0, payload=b""
    )
    checked = check_frames(~ledger_id, (entry_id,), (len(frame),), frame)
    assert isinstance(checked, Checked)
    return whole(checked)


def is_grave(ledger_id: int) -> bool:
    """Whether a frame in an entry log that names *ledger_id* is a grave."""
    return ledger_id < 0


def owner_of(ledger_id: int) -> int:
    """Return the ledger that a frame in an entry log that names *ledger_id* is of."""
    return ~ledger_id if ledger_id < 0 else ledger_id
