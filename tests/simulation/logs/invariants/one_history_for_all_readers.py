"""What anybody was given at an offset, everybody is given there, and nowhere else.

An acknowledgement counts as giving. So no record is doubled; txids never decrease.
"""

from tests.simulation.logs.oracle import LogHistory, Seen

_NAME = "one_history_for_all_readers"


def broken(history: LogHistory) -> str | None:
    for seen in history.new(_NAME, history.seen):
        first = history.records[seen.offset]
        if _value(first) != _value(seen):
            return (
                f"at offset {seen.offset} {first.who} found {_value(first)}, "
                f"{seen.who} {_value(seen)}"
            )
        append = history.appends.get(seen.payload)
        if append is None:
            return f"{seen.who} was given {seen.payload!r}, which nobody appended"
        key = f"{_NAME} {append.payload!r}"
        offset = history.checked.setdefault(key, seen.offset)
        if offset != seen.offset:
            return f"{append.payload!r} is at offset {offset} and at {seen.offset}"
        for other in (history.records.get(seen.offset - 1), history.records.get(seen.offset + 1)):
            if other is not None and not _ascend(*sorted((seen, other), key=lambda s: s.offset)):
                return f"records {seen} and {other} are not in order"
    return None


def _value(seen: Seen) -> tuple[object, ...]:
    return seen.payload, seen.dlsn, seen.txid


def _ascend(first: Seen, second: Seen) -> bool:
    txids = first.txid is None or second.txid is None or first.txid <= second.txid
    return first.dlsn < second.dlsn and txids
