"""Fields of a schema, whatever its format: their types in Arrow, and what may change between
versions.

Pure, but for `arrow_type` and what follows it, which need pyarrow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dlog.errors import InvalidLogSchema, SchemaLibraryMissing

if TYPE_CHECKING:
    import pyarrow as pa

DEPTH_MAX: Final = 16
"""Levels of records, lists and maps within each other."""
FIELDS_MAX: Final = 2000
"""Of one schema, with those of nested records, each place of a named type counted."""
OWN_PREFIX: Final = "_"
"""Begins the names of columns that a reader adds, as `_offset`."""
SCALARS: Final = frozenset(
    {
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "float",
        "double",
        "string",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    }
)
"""Kinds that have one type in Arrow; a timestamp is in microseconds, UTC or of no zone (ntz)."""
_DAYS: Final = (-719_162, 2_932_896)
_MICROS: Final = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
"""The years 1 to 9999, in days and microseconds since 1970."""
Widenings = Mapping[str, frozenset[str]]
"""For each kind the others that a newer version may have in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaField:
    """One column, or a part of one. An item of a list and a value of a map have an empty name."""

    name: str
    kind: str
    """One of `SCALARS`, or decimal, enum, fixed, list, map, record."""
    nullable: bool = False
    optional: bool = False
    """A record may leave it out: it has a default, or is null then."""
    children: tuple["SchemaField", ...] = ()
    symbols: tuple[str, ...] = ()
    """Of an enum; of older and newer ones every older one is kept."""
    precision: int = 0
    scale: int = 0
    size: int = 0
    """Bytes of a fixed."""
    wire: str = ""
    """How values are written, where one kind has several ways; it never changes."""
    closed: bool = False
    """Of a record: a payload has no other fields."""
    key: str = ""
    """What identifies it between versions: its name, or Protobuf's number."""
    aliases: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        return self.key or self.name

    @property
    def type_name(self) -> str:
        """The type for people."""
        match self.kind:
            case "decimal":
                return f"decimal({self.precision},{self.scale})"
            case "fixed":
                return f"fixed({self.size})"
            case "list" | "map":
                return f"{self.kind}<{self.children[0].type_name}>"
            case "record":
                inside = ", ".join(f"{child.name}: {child.type_name}" for child in self.children)
                return f"record<{inside}>"
            case _:
                return self.kind


class Budget:
    """Counts fields while a definition is parsed: named types can be nested to an exponential
    size."""

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def take(self, depth: int, where: str) -> None:
        """Count one field. Raises `InvalidLogSchema`."""
        self._left -= 1
        if self._left < 0:
            raise InvalidLogSchema(f"it has more than {FIELDS_MAX} fields; split it")
        if depth > DEPTH_MAX:
            raise InvalidLogSchema(f"{where or 'it'} is nested more than {DEPTH_MAX} levels deep")


def check_columns(fields: Sequence[SchemaField]) -> tuple[SchemaField, ...]:
    """Return *fields* if they can be the columns of rows. Raises `InvalidLogSchema`."""
    if not fields:
        raise InvalidLogSchema("it has no field; name one at least")
    for field in fields:
        if field.name.startswith(OWN_PREFIX):
            reason = "names that begin with an underscore are columns of dlog, as _offset"
            raise InvalidLogSchema(f"field {field.name!r}: {reason}")
    _check_names(fields, "")
    return tuple(fields)


def _check_names(fields: Sequence[SchemaField], where: str) -> None:
    """Spark does not distinguish names by case, and the text of a type must be readable."""
    lower = set[str]()
    for field in fields:
        path = where + field.name
        if not field.name or not field.name.isprintable() or len(field.name) > 255:
            raise InvalidLogSchema(f"field {path!r}: use 1 to 255 printable characters as a name")
        if field.name.lower() in lower:
            raise InvalidLogSchema(f"field {path!r}: another field has this name, but for case")
        lower.add(field.name.lower())
        inner = field
        while inner.kind in {"list", "map"}:
            inner = inner.children[0]
        _check_names(inner.children, f"{path}.")


def problems_between(
    older: Sequence[SchemaField],
    newer: Sequence[SchemaField],
    widenings: Widenings,
    where: str = "",
) -> list[str]:
    """Return why *newer* cannot follow *older*; none: it can.

    Records of *older* are readable by *newer*, and no field that readers of *older* count on goes:
    added fields are optional; fields that were required stay; a type stays, or is widened."""
    problems: list[str] = []
    before = {field.identity: field for field in older}
    matched = set[str]()
    for field in newer:
        path = where + field.name
        old = before.get(field.identity)
        if old is None:
            old = next((before[alias] for alias in field.aliases if alias in before), None)
        if old is None:
            if not field.optional:
                reason = "older records do not have it: give it a default, or let it be null"
                problems.append(f"field {path!r} is new and required; {reason}")
            continue
        matched.add(old.identity)
        problems += field_problems(old, field, widenings, path)
    for old in older:
        if old.identity not in matched and not old.optional:
            reason = "only optional fields may go"
            problems.append(f"field {where + old.name!r} is required before and gone; {reason}")
    return problems


def field_problems(
    old: SchemaField, new: SchemaField, widenings: Widenings, path: str
) -> list[str]:
    """Return why the type of *new* cannot follow that of *old*; see `problems_between`."""
    problems: list[str] = []
    if old.nullable and not new.nullable:
        problems.append(f"field {path!r} may be null in older records, and not any more")
    if old.optional and not new.optional:
        problems.append(f"field {path!r} may be absent in older records, and is required now")
    if old.wire != new.wire:
        problems.append(f"field {path!r} was written as {old.wire}, and is {new.wire} now")
    if old.kind != new.kind:
        if new.kind not in widenings.get(old.kind, frozenset()):
            change = f"was {old.type_name} and is {new.type_name} now"
            problems.append(f"field {path!r} {change}; a type stays, or is widened")
        return problems
    if (old.precision, old.scale, old.size) != (new.precision, new.scale, new.size):
        problems.append(f"field {path!r} was {old.type_name} and is {new.type_name} now")
    lost = [symbol for symbol in old.symbols if symbol not in new.symbols]
    if lost:
        problems.append(f"field {path!r}: symbols {', '.join(lost)} of older records are gone")
    if new.closed and not old.closed:
        what = f"field {path!r}" if path else "it"
        problems.append(f"{what} allows other properties in older records, and not any more")
    if old.kind == "record":
        problems += problems_between(
            old.children, new.children, widenings, f"{path}." if path else ""
        )
    elif old.children:
        problems += field_problems(old.children[0], new.children[0], widenings, f"{path}[]")
    return problems


def need_pyarrow() -> Any:
    """Return pyarrow. Raises `SchemaLibraryMissing`."""
    try:
        import pyarrow
    except ImportError:
        raise SchemaLibraryMissing("pyarrow") from None
    return pyarrow


def arrow_type(field: SchemaField, scalars: "Scalars | None" = None) -> "pa.DataType":
    """Return Arrow's type of *field*. Everything in it may be null: a reader that does not know
    a value has nothing else to put there.

    *scalars* returns another type than the usual one for some, else None."""
    pa = need_pyarrow()
    special = None if scalars is None else scalars(field)
    if special is not None:
        return special
    match field.kind:
        case "decimal":
            return pa.decimal128(field.precision, field.scale)
        case "list":
            return pa.list_(pa.field("item", arrow_type(field.children[0], scalars)))
        case "map":
            return pa.map_(pa.string(), arrow_type(field.children[0], scalars))
        case "record":
            return pa.struct([pa.field(c.name, arrow_type(c, scalars)) for c in field.children])
        case _:
            return _scalar(pa)[field.kind]


def _scalar(pa: Any) -> Mapping[str, "pa.DataType"]:
    return {
        "bool": pa.bool_(),
        "int8": pa.int8(),
        "int16": pa.int16(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "enum": pa.string(),
        "binary": pa.binary(),
        "fixed": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }


Scalars = Callable[[SchemaField], "pa.DataType | None"]


def arrow_schema_of(fields: Sequence[SchemaField], scalars: Scalars | None = None) -> "pa.Schema":
    pa = need_pyarrow()
    return pa.schema([pa.field(field.name, arrow_type(field, scalars)) for field in fields])


Reject = Callable[[int, str], None]
"""Called with the position of a value that cannot be stored, and why."""


def build_rows(
    values: Sequence[Any],
    schema: "pa.Schema",
    reject: Reject,
    *,
    written: "pa.Schema | None" = None,
) -> "pa.RecordBatch":
    """Return *values*, dicts by name, as a batch of *schema*, without those that do not fit.

    Values are of the types of *written*, if that is given. Arrow converts all of them at once; only
    where that fails are they halved, until those that do not fit are found."""
    pa = need_pyarrow()
    struct = pa.struct(list(schema))
    first_struct = struct if written is None else pa.struct(list(written))

    def convert(first: int, end: int) -> list[Any]:
        try:
            made = pa.array(values[first:end], type=first_struct)
            columns = made if written is None else made.cast(struct)
            check_times(columns)
            return [columns]
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            if end - first == 1:
                reject(first, f"{type(error).__name__}: {error}"[:300])
                return []
        half = (first + end) // 2
        return [*convert(first, half), *convert(half, end)]

    if not values:
        return _empty(pa, schema)
    arrays = convert(0, len(values))
    if not arrays:
        return _empty(pa, schema)
    whole = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    return pa.RecordBatch.from_arrays(whole.flatten(), schema=schema)


def check_times(column: "pa.Array") -> None:
    """Raise ValueError if a date or time in *column*, or in what it holds, is in no calendar:
    Python has none of them, and a query that collects one such row would fail."""
    pa = need_pyarrow()
    kind = column.type
    if pa.types.is_struct(kind):
        for child in column.flatten():
            check_times(child)
    elif pa.types.is_list(kind):
        check_times(column.flatten())
    elif pa.types.is_map(kind):
        check_times(column.items)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        import pyarrow.compute as pc

        is_date = pa.types.is_date(kind)
        extremes = pc.min_max(column.cast(pa.int32() if is_date else pa.int64())).as_py()
        least, most = _DAYS if is_date else _MICROS
        if extremes["min"] is not None and not least <= extremes["min"] <= extremes["max"] <= most:
            what = "a date" if is_date else "a time"
            raise ValueError(f"{what} is outside of the years 1 to 9999")


def _empty(pa: Any, schema: "pa.Schema") -> "pa.RecordBatch":
    return pa.RecordBatch.from_arrays([pa.array([], type=f.type) for f in schema], schema=schema)
