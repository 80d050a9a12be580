"""A log's schema as a value, its versions, and how both are stored.

    /schemas/<incarnation of the log>    all versions, changed by compare-and-swap

The incarnation identifies the log: a rename moves nothing, and a log that is re-created under the
same name has no schema. Numbers are never given twice, as records name them.

A record may name the version that it was written with in the header `dlog.schema`. Others are read
with the newest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Protocol, Self, cast, get_args

from dlog.errors import IncompatibleSchema, InvalidLogSchema, NoSuchSchema, TooManySchemas
from dlog.log_schema.columns import (
    SchemaField,
    Widenings,
    arrow_schema_of,
    build_rows,
    field_problems,
)
from dlog.wire import schema_pb2 as pb
from ledger.errors import DamagedMetadata
from ledger.nodes import parse_node

if TYPE_CHECKING:
    import pyarrow as pa

SchemaFormat = Literal["avro", "json", "arrow", "protobuf"]
FORMATS: Final[tuple[SchemaFormat, ...]] = get_args(SchemaFormat)
SCHEMA_HEADER: Final = "dlog.schema"
"""The header that names the version a record was written with, in ASCII digits."""
DEFINITION_BYTES_MAX: Final = 256 << 10
TOTAL_BYTES_MAX: Final = 768 << 10
"""Of all definitions of a log: they stand in one node of the metadata store."""
VERSIONS_MAX: Final = 100
MESSAGE_CHARACTERS_MAX: Final = 500
FORMAT_VERSION: Final = 1
SCHEMAS_PATH: Final = "/schemas"
Payload = bytes | memoryview


@dataclass(frozen=True, slots=True)
class BadPayload:
    """A payload that the schema cannot read."""

    index: int
    """Its place among those that were given."""
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Payloads as rows."""

    rows: "pa.RecordBatch"
    """Those of the payloads that could be read, in order."""
    sources: Sequence[int]
    """For each row the place of its payload. A payload of Arrow may have several rows, or none."""
    bad: tuple[BadPayload, ...] = ()


class PayloadCodec(Protocol):
    """A definition that was parsed."""

    widenings: ClassVar[Widenings]
    root: SchemaField
    """A record of all columns."""

    def decode(self, payloads: Sequence[Payload], writer: "PayloadCodec") -> Decoded:
        """Return the rows of *payloads*, which *writer*, of the same class, wrote."""

    def encode(self, rows: "pa.RecordBatch") -> list[bytes]:
        """Return a payload for each of *rows*, whose columns are those of the fields.

        Raises `InvalidLogSchema` for a value that it cannot write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSchema:
    """One version of a log's schema. `check` it once if it comes from a user."""

    format: SchemaFormat
    definition: bytes = field(repr=False)
    version: int = 0
    """From 1 on; 0: it is not stored."""
    message: str = ""
    """Of Protobuf: the full name of the message."""
    created_ms: int = 0

    def check(self) -> Self:
        """Return this one. Raises `InvalidLogSchema`, `SchemaLibraryMissing`."""
        self.codec()
        return self

    @property
    def fields(self) -> tuple[SchemaField, ...]:
        """Raises as `check`."""
        return self.codec().root.children

    def arrow_schema(self) -> "pa.Schema":
        """Return the columns of a row; all may be null. Raises as `check`."""
        return arrow_schema_of(self.fields)

    def decode(self, payloads: Sequence[Payload], *, writer: Self | None = None) -> Decoded:
        """Return *payloads* as rows of this schema.

        *writer*: the version that wrote them, if it is another one. A payload that is none of that
        version is among `Decoded.bad`, and has no row. Raises as `check`."""
        codec = self.codec()
        return codec.decode(payloads, codec if writer is None else writer.codec())

    def encode(self, rows: "pa.RecordBatch") -> list[bytes]:
        """Return a payload for each row. Columns are found by name; one that is missing is null,
        or what the schema has as its default.

        Raises `InvalidLogSchema` for a column of another type, for one that the schema does not
        have, and for a null where it allows none; as `check` too."""
        wanted = self.arrow_schema()
        unknown = [name for name in rows.schema.names if name not in wanted.names]
        if unknown:
            known = ", ".join(wanted.names)
            raise InvalidLogSchema(f"it has no field {unknown[0]!r}; it has {known}")
        for column in rows.schema:
            if column.type != wanted.field(column.name).type:
                type_ = wanted.field(column.name).type
                raise InvalidLogSchema(f"field {column.name!r} is {type_}, not {column.type}")
        return self.codec().encode(rows)

    def compatible_with(self, older: Self) -> list[str]:
        """Return why this one cannot follow *older*; none: it can. Raises as `check`."""
        if self.format != older.format:
            return [
                f"its format is {self.format}, and that of version {older.version} "
                f"{older.format}; clear the versions of the other format first"
            ]
        if self.message.rpartition(".")[2] != older.message.rpartition(".")[2]:
            return [f"it describes message {self.message!r}, and not {older.message!r}"]
        codec = self.codec()
        return field_problems(older.codec().root, codec.root, codec.widenings, "")

    def codec(self) -> PayloadCodec:
        """Return what reads and writes payloads. Raises as `check`."""
        return _parsed(self.format, self.definition, self.message)


@lru_cache(maxsize=64)
def _parsed(kind: SchemaFormat, definition: bytes, message: str) -> PayloadCodec:
    if not 0 < len(definition) <= DEFINITION_BYTES_MAX:
        size = f"it has {len(definition)} bytes"
        raise InvalidLogSchema(f"{size}; use 1 to {DEFINITION_BYTES_MAX}")
    if len(message) > MESSAGE_CHARACTERS_MAX:
        raise InvalidLogSchema(
            f"the name of a message has {MESSAGE_CHARACTERS_MAX} characters at most"
        )
    if (kind == "protobuf") != bool(message):
        raise InvalidLogSchema("a message is named for protobuf, and only there")
    match kind:
        case "avro":
            from dlog.log_schema.avro import AvroCodec

            return AvroCodec(definition)
        case "json":
            from dlog.log_schema.json_schema import JsonCodec

            return JsonCodec(definition)
        case "arrow":
            from dlog.log_schema.arrow_ipc import ArrowCodec

            return ArrowCodec(definition)
        case "protobuf":
            from dlog.log_schema.protobuf import ProtobufCodec

            return ProtobufCodec(definition, message)


def decoded(
    values: Sequence[object],
    sources: list[int],
    bad: list[BadPayload],
    columns: "pa.Schema",
    written: "pa.Schema | None" = None,
) -> Decoded:
    """Return *values* as rows; *sources* says which payload each is of. See `build_rows`."""
    refused = dict[int, str]()
    rows = build_rows(values, columns, refused.__setitem__, written=written)
    if refused:
        bad += [BadPayload(sources[at], reason) for at, reason in refused.items()]
        sources = [source for at, source in enumerate(sources) if at not in refused]
    return Decoded(rows, sources, tuple(sorted(bad, key=lambda each: each.index)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSchemas:
    """The versions of the schema of one log."""

    versions: tuple[LogSchema, ...] = ()
    next_number: int = 1

    @property
    def newest(self) -> LogSchema | None:
        return self.versions[-1] if self.versions else None

    def find(self, log: str, version: int | None = None) -> LogSchema:
        """Return that version, or the newest. Raises `NoSuchSchema`."""
        if version is None:
            found = self.newest
        else:
            found = next((each for each in self.versions if each.version == version), None)
        if found is None:
            raise NoSuchSchema(log, version)
        return found

    def with_next(self, log: str, schema: LogSchema, *, now_ms: int) -> Self:
        """Return the versions with *schema* as the newest; the same ones if it is that already.

        It has to be compatible with all of them: the newest reads every record of the log. Raises
        `InvalidLogSchema`, `IncompatibleSchema`, `TooManySchemas`, `SchemaLibraryMissing`."""
        schema.check()
        newest = self.newest
        given = (schema.format, schema.definition, schema.message)
        if newest is not None and given == (newest.format, newest.definition, newest.message):
            return self
        for older in self.versions:
            problems = schema.compatible_with(older)
            if problems:
                raise IncompatibleSchema(log, older.version, problems)
        stored = sum(len(each.definition) for each in self.versions) + len(schema.definition)
        if len(self.versions) >= VERSIONS_MAX or stored > TOTAL_BYTES_MAX:
            raise TooManySchemas(log, VERSIONS_MAX, TOTAL_BYTES_MAX)
        added = replace(schema, version=self.next_number, created_ms=now_ms)
        versions = (*self.versions, added)
        return replace(self, versions=versions, next_number=self.next_number + 1)

    def cleared(self, before: int | None = None) -> Self:
        """Return them without those below version *before*, or without any; numbers go on."""
        kept = [] if before is None else [each for each in self.versions if each.version >= before]
        return replace(self, versions=tuple(kept))

    def encode(self) -> bytes:
        schemas = [
            pb.SchemaNode(
                number=each.version,
                format=each.format,
                definition=each.definition,
                message=each.message,
                created_ms=each.created_ms,
            )
            for each in self.versions
        ]
        node = pb.SchemasNode(version=FORMAT_VERSION, schemas=schemas, next_number=self.next_number)
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, *, path: str) -> Self:
        """Raises `DamagedMetadata`."""
        node = pb.SchemasNode()
        parse_node(node, value, path, version=FORMAT_VERSION)
        numbers = [each.number for each in node.schemas]
        if numbers != sorted({*numbers}) or [*numbers, node.next_number][0] < 1:
            raise DamagedMetadata(path, f"versions {numbers} do not ascend from 1")
        if numbers and numbers[-1] >= node.next_number:
            raise DamagedMetadata(path, f"version {numbers[-1]} is to be given again")
        for each in node.schemas:
            if each.format not in FORMATS:
                raise DamagedMetadata(path, f"there is no format {each.format!r}")
        return cls(
            versions=tuple(
                LogSchema(
                    format=cast("SchemaFormat", each.format),
                    definition=each.definition,
                    version=each.number,
                    message=each.message,
                    created_ms=each.created_ms,
                )
                for each in node.schemas
            ),
            next_number=node.next_number,
        )


def version_in(header: bytes | None) -> int:
    """Return the number that the header `dlog.schema` has; -1 if it has none."""
    digits = header or b""
    return int(digits) if digits.isdigit() and len(digits) <= 9 else -1


def schemas_path(incarnation: str) -> str:
    """Return the node of the schemas of the log with *incarnation*."""
    return f"{SCHEMAS_PATH}/{incarnation}"
