"""What must come out, by a plain computation over what went in. No Spark here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from examples.lakehouse.source import table_of

Row = Mapping[str, object]


@dataclass(slots=True)
class Expected:
    """Everything the pipeline shall have made, by what identifies it."""

    rows: dict[object, Row] = field(default_factory=dict)
    """The rows of Parquet, by txid."""
    windows: dict[object, Row] = field(default_factory=dict)
    """The records of `delays`, by airport and hour."""


def expected(departures: Sequence[bytes]) -> Expected:
    """Compute what the pipeline shall make of *departures*; each one's txid is its number."""
    airports, planes = table_of("airports", "faa"), table_of("planes", "tailnum")
    result = Expected()
    hours: dict[tuple[str, str], list[Row]] = {}
    for txid, line in enumerate(departures):
        given = json.loads(line)
        airport = airports.get(given["origin"])
        if given["dep_delay"] is None or airport is None:
            continue
        plane = planes.get(given["tailnum"] or "")
        row = {
            "day": f"{given['year']}-{given['month']:02}-{given['day']:02}",
            "origin": given["origin"],
            "airport": airport["name"],
            "dest": given["dest"],
            "dep_delay": given["dep_delay"],
            "manufacturer": plane["manufacturer"] if plane else None,
            "seats": int(plane["seats"]) if plane else None,
        }
        result.rows[txid] = row
        hours.setdefault((given["origin"], given["time_hour"]), []).append(row)
    for (origin, hour), rows in hours.items():
        delays = [_number(row["dep_delay"]) for row in rows]
        result.windows[origin, hour] = {
            "origin": origin,
            "hour": hour,
            "airport": rows[0]["airport"],
            "departures": len(rows),
            "mean_delay": sum(delays) / len(delays),
            "max_delay": max(delays),
            "seats": sum(_number(row["seats"] or 0) for row in rows),
        }
    return result


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
