"""A reader is given the records from its start on, each once, in order, none left out.

One that begins at a txid leaves out none that reached it. It ends only because its position was
trimmed or its log deleted, which is an error.
"""

from tests.simulation.logs.oracle import LogHistory, Reading

_NAME = "readers_go_forward"


def broken(history: LogHistory) -> str | None:
    for number, reading in enumerate(history.readings):
        if len(reading.reads) > history.checked.get(f"{_NAME} {number}", 0):
            story = _left_out(history, reading)
            if story is not None:
                return story
        for seen in history.new(f"{_NAME} {number}", reading.reads):
            if seen.offset != reading.next_offset:
                return (
                    f"{reading.who}, who began at {reading.start}, was given offset "
                    f"{seen.offset} instead of {reading.next_offset}"
                )
            reading.next_offset += 1
        if reading.failure:
            return f"{reading.who} failed at offset {reading.next_offset}: {reading.failure}"
        if reading.trimmed_at is not None and reading.trimmed_at <= reading.next_offset:
            return f"{reading.who} got Trimmed: {reading.next_offset} is trimmed, which is not"
    return None


def _left_out(history: LogHistory, reading: Reading) -> str | None:
    if reading.from_txid is None:
        return None
    for offset in range(history.manifest.trim_offset, reading.start):
        seen = history.records.get(offset)
        if seen is not None and seen.txid is not None and seen.txid >= reading.from_txid:
            return (
                f"{reading.who} began at {reading.start} to read from txid {reading.from_txid} "
                f"on, which record {offset} has reached"
            )
    return None
