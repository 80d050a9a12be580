"""Which columns a sink takes, of which types; checked when the write is planned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dlog.spark.errors import InvalidColumns

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
TYPES: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "timestamp": ("timestamp", "bigint"),
    "txid": ("bigint", "int"),
    "headers": (HEADERS_TYPE,),
    "log": ("string",),
}
"""Types as Spark names them, the usual one first. A timestamp that is a number is milliseconds."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Where each column stands in the rows; None: there is none of that name."""

    value: int
    key: int | None = None
    timestamp: int | None = None
    txid: int | None = None
    headers: int | None = None
    log: int | None = None

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]], *, log: str | None) -> "SinkColumns":
        """Find the columns among *fields*, each a name and Spark's name of its type.

        *log* is the one that the write names for all rows, if any. Raises `InvalidColumns`."""
        places: dict[str, int] = {}
        for place, (given, kind) in enumerate(fields):
            name = given.lower()
            if name not in TYPES:
                raise InvalidColumns(
                    f"column {given!r} is unknown; known are {', '.join(TYPES)}. Put what a record "
                    "holds into value, e.g. to_json(struct(*)) AS value, or drop it"
                )
            if name in places:
                raise InvalidColumns(f"there are two columns {name!r}; rename or drop one")
            if not _fits(kind, TYPES[name]):
                wanted = " or ".join(TYPES[name])
                raise InvalidColumns(f"column {given!r} is of type {kind}; cast it to {wanted}")
            places[name] = place
        if "value" not in places:
            raise InvalidColumns(
                "there is no column 'value', binary or string: what a record holds"
            )
        if "log" in places and log is not None:
            raise InvalidColumns(
                f"column 'log' says where each row goes, but the write names log {log!r} for all; "
                "drop the column, or leave the name out of start() or save()"
            )
        if "log" not in places and log is None:
            raise InvalidColumns(
                "no log is named; name it for all rows, start('orders') or save('orders'), or for "
                "each in a column 'log'"
            )
        return cls(**places)


def _fits(kind: str, wanted: Sequence[str]) -> bool:
    # A string may have a collation, which its bytes do not depend on.
    return kind in wanted or ("string" in wanted and kind.startswith("string collate"))
