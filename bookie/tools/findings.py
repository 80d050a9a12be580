"""The results of a check: counts, damages, and notes on harmless oddities."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

KEPT_MAX: Final = 1000
"""Damages and notes that are kept; the others are counted."""
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""
COPY: Final = (
    "keep the file, so that its entries are not denied; if 'dlog log verify' finds them all at "
    "the other replicas, this bookie may be wiped ('dlog bookie format --wipe --forget') and "
    "replaced by one of another name"
)
REBUILD: Final = "if the entry logs are whole, 'dlog bookie index rebuild' rebuilds the index"
RESTORE: Final = "put the file back from where it went, or " + COPY


def no_progress(what: str, done: int, total: int) -> None:
    del what, done, total


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that was promised may not be there."""

    path: str
    offset: int
    reason: str
    advice: str = COPY


@dataclass(frozen=True, slots=True)
class Note:
    """Odd, or left over, and harmless."""

    path: str
    reason: str


@dataclass(slots=True)
class Counts:
    journal_files: int = 0
    journal_records: int = 0
    """From the mark on: what the next start replays."""
    journal_bytes: int = 0
    ledgers: int = 0
    fenced: int = 0
    index_pages: int = 0
    index_entries: int = 0
    entry_bytes: int = 0
    entry_logs: int = 0
    frames: int = 0
    frame_bytes: int = 0
    orphans: int = 0
    """Frames that no index names: deleted, copied elsewhere, or never acknowledged."""
    orphan_bytes: int = 0
    healed: int = 0
    """Entries that are damaged in an entry log, and that the next start writes again."""


@dataclass(slots=True)
class Findings:
    counts: Counts = field(default_factory=Counts)
    damages: list[Damage] = field(default_factory=list)
    damage_count: int = 0
    notes: list[Note] = field(default_factory=list)
    note_count: int = 0

    @property
    def is_whole(self) -> bool:
        return not self.damage_count

    def damage(self, path: str, offset: int, reason: str, advice: str = COPY) -> None:
        self.damage_count += 1
        if len(self.damages) < KEPT_MAX:
            self.damages.append(Damage(path, offset, reason, advice))

    def note(self, path: str, reason: str) -> None:
        self.note_count += 1
        if len(self.notes) < KEPT_MAX:
            self.notes.append(Note(path, reason))


class EntrySets:
    """Entries of many ledgers."""

    def __init__(self) -> None:
        self._runs: dict[int, list[list[int]]] = {}

    def add(self, ledger_id: int, entries: "array[int] | Iterable[int]") -> None:
        runs = self._runs.setdefault(ledger_id, [])
        for entry_id in entries:
            at = bisect_right(runs, [entry_id, entry_id]) - 1
            if at >= 0 and entry_id <= runs[at][1] + 1:
                runs[at][1] = max(runs[at][1], entry_id)
            elif not (at + 1 < len(runs) and runs[at + 1][0] == entry_id):
                runs.insert(at + 1, [entry_id, entry_id])

    def has(self, ledger_id: int, entry_id: int) -> bool:
        runs = self._runs.get(ledger_id, [])
        at = bisect_right(runs, [entry_id, 1 << 62]) - 1
        return at >= 0 and entry_id <= runs[at][1]

    def ledgers(self) -> list[int]:
        return sorted(self._runs)
