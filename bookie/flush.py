"""Moves a memtable to the disk: entry logs first, synced, then the index (rules 65, 67)."""

from collections.abc import Iterable
from dataclasses import replace

from bookie.entrylog.writer import EntryLogWriter
from bookie.index.format import LedgerHeader
from bookie.index.ledger_index import LedgerIndex
from bookie.ledgers import LedgerRecord
from bookie.memtable import Memtable


def header_of(record: LedgerRecord) -> LedgerHeader:
    """Return what the index file of a ledger is to say now, its entries apart."""
    return replace(record.stored, fenced=record.fenced, lac_proof=record.lac_proof)


def flush(
    memtable: Memtable,
    headers: Iterable[LedgerHeader],
    logs: EntryLogWriter,
    index: LedgerIndex,
) -> list[LedgerHeader]:
    """Write all entries of *memtable* and all *headers*, which name at least its ledgers.

    Returns the headers as they are on disk afterwards. Raises `OSError` and `IndexDamaged`;
    nothing is lost then, but the disk is not to be trusted any more (rule 60)."""
    placed = []
    for header in headers:
        entries = memtable.ledger(header.ledger_id)
        pieces = entries.pieces() if entries else []
        placed.append((header, pieces, logs.write(pieces)))
    logs.sync()
    stored = [index.put(header, pieces, places) for header, pieces, places in placed]
    index.flush()
    return stored
