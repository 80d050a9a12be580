"""Answers reads from memory and disk, in the state of one moment."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest
from typing import Final

from bookie.entrylog.reader import Stored
from bookie.index.format import LedgerHeader
from bookie.pieces import FoundPieces, Piece, limit, merge
from bookie.storage.holdings import StorageState
from bookie.storage.ledger_table import LedgerRecord
from bookie.storage.memtable import Recent
from ledger.requests import LacAnswer, ReadAnswer, ReadQuery, Status

_SHARE_MIN: Final = 4
"""An answer that waits to be sent keeps no more than so many times its own bytes in memory."""


@dataclass(frozen=True, slots=True)
class _View:
    """What memory says about a ledger, at one moment."""

    recent: Recent
    stored: LedgerHeader
    lac_proof: bytes
    fenced: bool


def read(holdings: StorageState, query: ReadQuery) -> ReadAnswer:
    """Answer from memory and disk; may block."""
    if query.first < 0 or query.last < query.first:
        return ReadAnswer(Status.BAD_REQUEST)
    action = partial(_view, holdings, query)
    view = holdings.with_record(query.ledger_id, action, Status.IO_ERROR)
    if isinstance(view, Status):
        return ReadAnswer(view)
    last = min(query.last, view.recent.floor)
    if last < query.first:
        return _answer(query, view, Stored(FoundPieces((), query.last)))
    stored = _find_around(holdings, view, query, last)
    if stored.damage is not None and holdings.is_gone(query.ledger_id):
        return ReadAnswer(Status.NO_SUCH_LEDGER)
    if stored.damage is not None:
        with holdings.lock:
            holdings.damaged_reads += 1
    return _answer(query, view, _all(stored, last, query))


def read_recent(holdings: StorageState, query: ReadQuery) -> ReadAnswer | None:
    """Answer from memory alone; None if that is not the whole truth."""
    if query.first < 0 or query.last < query.first:
        return ReadAnswer(Status.BAD_REQUEST)
    with holdings.lock:
        holdings.check()
        record = holdings.ledgers.get(query.ledger_id)
        if record is None and holdings.ledgers.is_known(query.ledger_id):
            return None
        view = _view(holdings, query, record)
    if isinstance(view, Status):
        return ReadAnswer(view)
    last = min(query.last, view.recent.floor)
    if last < query.first:
        return _answer(query, view, Stored(FoundPieces((), query.last)))
    found = holdings.read_cache.find(view.stored, query.first, last, query.bytes_max)
    return None if found is None else _answer(query, view, _all(Stored(found), last, query))


def lac(holdings: StorageState, ledger_id: int, key: bytes) -> LacAnswer:
    """Say what is known of the ledger's LAC, its fence and its last entry."""
    return holdings.with_record(ledger_id, partial(_lac, key), LacAnswer(Status.IO_ERROR))


def _find_around(holdings: StorageState, view: _View, query: ReadQuery, last: int) -> Stored:
    """Return what the disk has of the query, up to *last*; a damaged entry does not end it if
    memory has it, because it was just repaired."""
    stored = _find(holdings, view.stored, query, last)
    if stored.damage is None:
        return stored
    in_memory = dict.fromkeys(one for piece in view.recent.found.pieces for one in piece.entries)
    pieces = list(stored.found.pieces)
    while (damaged := stored.found.considered + 1) in in_memory and damaged < last:
        left_bytes = query.bytes_max - sum(piece.size_bytes for piece in pieces)
        if left_bytes <= 0:
            return Stored(FoundPieces(pieces, damaged))
        stored = holdings.find(view.stored, damaged + 1, last, left_bytes)
        pieces += stored.found.pieces
        if stored.damage is None:
            return Stored(FoundPieces(pieces, stored.found.considered))
    if damaged in in_memory:
        return Stored(FoundPieces(pieces, damaged))
    return Stored(FoundPieces(pieces, stored.found.considered), stored.damage)


def _find(holdings: StorageState, stored: LedgerHeader, query: ReadQuery, last: int) -> Stored:
    """Return what the disk has of the query, up to *last*."""
    cache = holdings.read_cache
    kept = cache.find(stored, query.first, last, query.bytes_max)
    if kept is not None:
        return Stored(kept)
    wanted_bytes = cache.wanted_bytes(stored.ledger_id, query.first, query.bytes_max)
    found = holdings.find(stored, query.first, last, wanted_bytes)
    if found.damage is not None:
        return found
    return Stored(cache.put(stored, query.first, found.found, query.bytes_max))


def _all(stored: Stored, last: int, query: ReadQuery) -> Stored:
    """Behind *last*, which is as far as the disk was asked, it has nothing that memory has not."""
    if stored.damage is not None or stored.found.considered < last:
        return stored
    return Stored(FoundPieces(stored.found.pieces, query.last))


def _view(holdings: StorageState, query: ReadQuery, record: LedgerRecord | None) -> _View | Status:
    if record is None:
        return Status.NO_SUCH_LEDGER
    if not compare_digest(record.key, query.key):
        return Status.WRONG_KEY
    recent = holdings.memory.find(record.stored, query.first, query.last, query.bytes_max)
    return _View(recent, record.stored, record.lac_proof, record.fenced)


def _lac(key: bytes, record: LedgerRecord | None) -> LacAnswer:
    if record is None:
        return LacAnswer(Status.NO_SUCH_LEDGER)
    if not compare_digest(record.key, key):
        return LacAnswer(Status.WRONG_KEY)
    return LacAnswer(Status.OK, record.lac_proof, record.fenced, record.last_entry)


def _answer(query: ReadQuery, view: _View, stored: Stored) -> ReadAnswer:
    """Put together what memory and disk have said."""
    considered = min(view.recent.found.considered, stored.found.considered)
    pieces = merge([*view.recent.found.pieces, *stored.found.pieces])
    found = limit(pieces, considered, query.bytes_max)
    if stored.damage is not None and found.considered < query.first:
        return ReadAnswer(Status.IO_ERROR, lac_proof=view.lac_proof, fenced=view.fenced)
    entries, lengths = array("q"), array("I")
    for piece in found.pieces:
        entries += piece.entries
        lengths += piece.lengths
    return ReadAnswer(
        Status.OK,
        entries,
        lengths,
        _frames(found.pieces),
        considered=found.considered,
        lac_proof=view.lac_proof,
        fenced=view.fenced,
    )


def _frames(pieces: Sequence[Piece]) -> bytes | memoryview:
    """Return the frames of *pieces*, without a copy if they lie together, and are not so small a
    part of what they would keep alive."""
    if len(pieces) == 1 and _SHARE_MIN * len(view := pieces[0].view()) >= len(pieces[0].run.data):
        return view
    return b"".join(piece.view() for piece in pieces)
