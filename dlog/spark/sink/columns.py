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
_GIVEN_BY_LOG: Final = frozenset({"offset", "dlsn"})


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Where each column stands in the rows; None: there is none of that name."""

    value: int
    key: int | None = None
    timestamp: int | None = None
    txid: int | None = None
    headers: int | None = None
    log: int | None = None
    table_log: int | None = None
    """Like the next two of a table only: what is read has it, what is written must not."""
    offset: int | None = None
    dlsn: int | None = None

    @property
    def given_by_log(self) -> list[tuple[str, int]]:
        """Columns that have to be null, by name and place."""
        places = {"log": self.table_log, "offset": self.offset, "dlsn": self.dlsn}
        return [(name, place) for name, place in places.items() if place is not None]

    @property
    def txid_may_be_null(self) -> bool:
        """Whether a column of nulls says that records have no txid: it was left out."""
        return self.table_log is not None

    @classmethod
    def of_table(cls, fields: Sequence[tuple[str, str]]) -> "SinkColumns":
        """Find the columns of rows that are inserted into a table, all of them that it has."""
        places = {name.lower(): place for place, (name, _) in enumerate(fields)}
        places["table_log"] = places.pop("log")
        return cls(**places)

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]], *, log: str | None) -> "SinkColumns":
        """Find the columns among *fields*, each a name and Spark's name of its type.

        *log* is the one that the write names for all rows, if any. Raises `InvalidColumns`."""
        places: dict[str, int] = {}
        for place, (given, kind) in enumerate(fields):
            name = given.lower()
            if name in _GIVEN_BY_LOG:
                raise InvalidColumns(
                    f"column {given!r} is what a log gives its records; drop it, and name the log: "
                    "start('orders') or save('orders'). toTable() does not say which log is meant"
                )
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
                "each in a column 'log'. Of CREATE TABLE ... AS SELECT Spark hands no options to a "
                "Python source: create the table first, without columns, then INSERT INTO it"
            )
        return cls(**places)


def _fits(kind: str, wanted: Sequence[str]) -> bool:
    # A string may have a collation, which its bytes do not depend on.
    return kind in wanted or ("string" in wanted and kind.startswith("string collate"))
