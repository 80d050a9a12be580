"""What goes in: departures in the order in which the planes left, and two small tables.

The row number is the txid of the record. The last row is a departure from nowhere, long after
all others: as time has gone on so far, every hour before it is complete. Joining it with the
airports drops it, so it is in no result.
"""

import csv
import json
from datetime import datetime, timedelta
from typing import Final

from dlog.demo.source import flights, table

RECORDS: Final = 336_776
LATE_MAX: Final = "1 day"
"""A departure is known this long after the hour it was planned for, at most. The longest delay
is 21 h 41 min."""
_LAST: Final = {"origin": "NOWHERE", "dep_delay": 0, "time_hour": "2014-06-01T00:00:00Z"}


def departures(records: int) -> list[bytes]:
    """Return the first *records* departures as JSON, and the one from nowhere after them."""
    rows = sorted(flights(), key=_left_at)[:records]
    return [*rows, json.dumps(_LAST).encode()]


def table_of(name: str, key: str) -> dict[str, dict[str, str]]:
    """Return the rows of a small table of the package, by *key*."""
    with table(f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return {row[key]: row for row in csv.DictReader(lines)}


def _left_at(line: bytes) -> datetime:
    """Return when it left, or should have, if it was cancelled."""
    row = json.loads(line)
    minutes = row["minute"] + (row["dep_delay"] or 0)
    return datetime.fromisoformat(row["time_hour"]) + timedelta(minutes=minutes)
