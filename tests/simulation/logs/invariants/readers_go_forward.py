"""A reader is given the records from its start on, each once, in order, none left out.

It ends only because its position was trimmed or its log deleted, which is told.
"""

from tests.simulation.logs.oracle import LogHistory


def broken(history: LogHistory) -> str | None:
    for number, reading in enumerate(history.readings):
        for seen in history.new(f"readers_go_forward {number}", reading.reads):
            if seen.offset != reading.next_offset:
                return (
                    f"{reading.who}, who began at {reading.start}, was given offset "
                    f"{seen.offset} instead of {reading.next_offset}"
                )
            reading.next_offset += 1
        if reading.failure:
            return f"{reading.who} failed at offset {reading.next_offset}: {reading.failure}"
        if reading.trimmed_at is not None and reading.trimmed_at <= reading.next_offset:
            return f"{reading.who} was told that {reading.next_offset} is trimmed, which is not"
    return None
