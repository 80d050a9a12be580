"""Is what was read exactly what was written? Pure functions on rows of (txid, value)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a copy of the source has and has not. `exact` iff nothing is wrong with it."""

    records: int
    lost: int
    doubled: int
    out_of_order: int
    changed: int
    foreign: int

    @property
    def exact(self) -> bool:
        wrong = self.lost + self.doubled + self.out_of_order + self.changed + self.foreign
        return wrong == 0


def compare(source: Sequence[bytes], copy: Iterable[tuple[int | None, bytes]]) -> Verdict:
    """Compare *copy*, rows of (txid, value) in order of offset, with *source* record by record.

    A row that was seen before counts as doubled, a new one with a smaller txid than its
    predecessor as out of order, one whose bytes differ from the source's as changed, and one
    that is no row of the source as foreign.
    """
    seen = bytearray(len(source))
    records = doubled = out_of_order = changed = foreign = 0
    newest = -1
    for txid, value in copy:
        records += 1
        if txid is None or not 0 <= txid < len(source):
            foreign += 1
            continue
        if source[txid] != value:
            changed += 1
        if seen[txid]:
            doubled += 1
            continue
        seen[txid] = 1
        if txid < newest:
            out_of_order += 1
        newest = max(newest, txid)
    return Verdict(records, seen.count(0), doubled, out_of_order, changed, foreign)
