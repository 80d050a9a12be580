"""Records as people and JSON have them, by the schemas of their log: for `dlog log tail --decode`
and the console."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from dlog.log_schema.value import SCHEMA_HEADER, LogSchemas, version_in
from dlog.position import Record


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    rows: tuple[Mapping[str, Any], ...] = ()
    """Values that `json.dumps` takes. One row, but for a payload of Arrow."""
    problem: str = ""
    """Why there is none."""

    @property
    def json(self) -> object:
        """The row, or a list of them; of a record that could not be read, None."""
        if self.problem:
            return None
        return self.rows[0] if len(self.rows) == 1 else list(self.rows)


def decode_records(log: str, schemas: LogSchemas, records: Sequence[Record]) -> list[DecodedRecord]:
    """Return the rows of each of *records*, read by the newest of *schemas*.

    Raises `NoSuchSchema` if there is none, `SchemaLibraryMissing`, `InvalidLogSchema`."""
    newest = schemas.find(log)
    known = {schema.version: schema for schema in schemas.versions}
    found: list[DecodedRecord] = [DecodedRecord()] * len(records)
    versions = [named_version(record) for record in records]
    for version in dict.fromkeys(versions):
        where = [at for at, each in enumerate(versions) if each == version]
        writer = newest if version is None else known.get(version)
        if writer is None:
            problem = f"the log has no version {version} of its schema"
            for at in where:
                found[at] = DecodedRecord(problem=problem)
            continue
        decoded = newest.decode([records[at].value for at in where], writer=writer)
        rows: dict[int, list[Mapping[str, Any]]] = {at: [] for at in where}
        for source, row in zip(
            decoded.sources, decoded.rows.to_pylist(maps_as_pydicts="lossy"), strict=True
        ):
            rows[where[source]].append({name: _plain(value) for name, value in row.items()})
        problems = {where[bad.index]: bad.reason for bad in decoded.bad}
        for at in where:
            found[at] = DecodedRecord(tuple(rows[at]), problems.get(at, ""))
    return found


def named_version(record: Record) -> int | None:
    """Return the version that *record* names; -1: its header is no number; None: it names none."""
    if not record.headers:
        return None
    named = [value for name, value in record.headers.pairs() if name == SCHEMA_HEADER]
    return version_in(named[-1]) if named else None


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode()}
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            return value
