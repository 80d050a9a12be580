"""Tables of Spark's catalog: `CREATE TABLE flights USING dlog OPTIONS (logs 'flights')`.

When such a table is made, Spark hands over its properties among the options, which are taken away
again here, as unknown options are refused. When it is read, Spark gives a Python source none of
its options (4.2 and 4.3), but the schema that it stored. So the options travel in the metadata of
that schema's first column, of tables only: other frames have none of it. Spark hands the schema
back where rows are inserted, too, with a null in each column that the insertion does not name.
"""

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from dlog.arrow import ARROW_SCHEMA, ARROW_SCHEMA_WITH_HEADERS
from dlog.spark.errors import InvalidOption
from dlog.spark.namespaces import OPTIONS as NAMESPACE

_METADATA: Final = "dlog.options"
_OPTION: Final = "option."
"""Begins the names under which a table's options come a second time."""
_PROVIDER: Final = "provider"
"""The property that every table has."""
_PROPERTIES: Final = frozenset(
    {
        _PROVIDER,
        "collation",
        "comment",
        "external",
        "is_managed_location",
        "location",
        "owner",
    }
)
"""Names that Spark reserves for properties of tables; a location comes as the option path, too."""
_TARGETS: Final = frozenset({"path", "log"})
"""Options of a write that says itself where rows go."""


def _shape(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


_TABLES: Final = [_shape(from_arrow_schema(s)) for s in (ARROW_SCHEMA, ARROW_SCHEMA_WITH_HEADERS)]


def is_table(given: Mapping[str, str]) -> bool:
    """Return whether *given* is what a table is made with."""
    return any(name.lower() == _PROVIDER for name in given)


def options_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the user gave, under lower-case names."""
    lower = {name.lower(): value for name, value in given.items()}
    if not is_table(lower):
        return lower
    return {
        name: value
        for name, value in lower.items()
        if name not in _PROPERTIES and not name.startswith(_OPTION)
    }


def with_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table that has these *columns* and *options*."""
    first, *others = columns.fields
    metadata = first.metadata | {_METADATA: json.dumps(dict(sorted(options.items())))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def table_options(schema: StructType | None) -> dict[str, str]:
    """Return the options that `with_options` put into *schema*; none if it is of no table."""
    fields = schema.fields if isinstance(schema, StructType) else []
    stored = next((each.metadata[_METADATA] for each in fields if _METADATA in each.metadata), "{}")
    options: dict[str, str] = json.loads(stored)
    return options


def insertion_options(given: Mapping[str, str], schema: StructType) -> dict[str, str] | None:
    """Return the options of a sink if rows of *schema* are inserted into a table; else None.

    Raises `InvalidOption` if the table reads more than one log."""
    stored = table_options(schema)
    if "columns" in stored and not {name.lower() for name in given} & _TARGETS:
        reason = "rows are inserted into a table that has all columns; create one without this"
        raise InvalidOption("columns", stored["columns"], reason)
    lower = {name.lower(): value for name, value in given.items()}
    is_typed = stored.get("payload", "raw").lower() != "raw"
    if not stored or lower.keys() & _TARGETS or not (is_typed or _shape(schema) in _TABLES):
        return None
    names = {name.strip() for name in stored.get("logs", stored.get("path", "")).split(",")} - {""}
    if len(names) != 1:
        way = next(name for name in ("logs", "logspattern", "path") if name in stored)
        reason = (
            "rows are inserted into a table of one log; give them a column 'log' that names "
            "theirs, and write them by df.write.format('dlog').mode('append').save()"
        )
        raise InvalidOption(way, stored[way], reason)
    kept = (*NAMESPACE, "payload", "schemafile", "schemamessage")
    namespace = {name: stored[name] for name in kept if name in stored}
    return {"log": names.pop()} | namespace | lower
