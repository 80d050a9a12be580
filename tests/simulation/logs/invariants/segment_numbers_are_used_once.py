"""A segment number names one ledger for ever, and epochs grow from open to open."""

from itertools import pairwise

from ledger.ids import LedgerId
from tests.simulation.logs.oracle import LogHistory

_NAME = "segment_numbers_are_used_once"


def broken(history: LogHistory) -> str | None:
    for _, manifest in history.new(_NAME, history.manifests):
        for segment in manifest.segments:
            key = f"{_NAME} {segment.number}"
            ledger_id = LedgerId(history.checked.setdefault(key, segment.ledger_id))
            if ledger_id != segment.ledger_id:
                return (
                    f"segment {segment.number} was ledger {ledger_id} and is now "
                    f"{segment.ledger_id}"
                )
    if history.new(f"{_NAME} opens", history.opens):
        for first, second in pairwise(sorted(history.opens, key=lambda each: each.epoch)):
            if first.epoch == second.epoch:
                return f"{first.who} and {second.who} both opened as epoch {first.epoch}"
    return None
