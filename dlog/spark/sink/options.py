"""The options of a `dlog` sink, checked once and in one place.

Spark hands the options over as strings, with those that are its own among them; those are let
through, and unknown ones are refused: a misspelt limit that is ignored is found in production.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5

from dlog.errors import InvalidName, InvalidSettings
from dlog.names import check_name
from dlog.receipts import NUMBER_MAX
from dlog.settings import LogSettings, parse_settings
from dlog.spark.errors import SINK, InvalidOption, as_written
from ledger.errors import InvalidQuorum, InvalidValue
from ledger.values import count_of, flag_of, size_bytes

if TYPE_CHECKING:
    from dlog.spark.payload import PayloadOptions

INLINE_BYTES: Final = 1 << 20
INLINE_BYTES_MAX: Final = 8 << 20
"""More would not be one entry."""
SETTING_PREFIX: Final = "log."
"""Options `log.roll_bytes`, ... are settings of a log that the sink makes."""

_WRITES: Final = UUID("3c5b5a3e-6f0b-4be5-8a2b-0d5f3d6c2a11")
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "mergeschema"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one sink; the names in the messages are the ones that users write."""

    log: str | None = None
    """Where all rows go; None: each row names its log."""
    logs: tuple[str, ...] = ()
    """Of a sink whose rows name their logs: which ones tasks shall be ready to stage for."""
    inline_bytes_max: int = INLINE_BYTES
    """Rows of a batch travel to the driver up to so many bytes, and become one entry."""
    create_logs: bool = True
    """Whether a log that is not there is made."""
    write_id: str | None = None
    """Of a batch write: the same name and number never commit twice."""
    write_number: int = 0
    """Ascends from write to write of one name, as the batches of a query."""
    settings: LogSettings | None = None
    """Of a log that is made; None: the defaults."""
    payload: "PayloadOptions | None" = None
    """How columns become payloads; None: rows have a column value."""
    schema_header: bool = False
    """Whether each record names the version of the schema that it was written with."""
    into_table: bool = False
    """Whether rows have the columns of a table of the catalog; no user says so."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Read Spark's options; raises InvalidOption with the name the user wrote."""
        given = {name.lower(): value for name, value in options.items()}
        for name in sorted(given):
            if name not in KNOWN | _SPARKS_OWN and not name.startswith(SETTING_PREFIX):
                known = ", ".join((*sorted(SINK), "log.<setting>"))
                raise InvalidOption(name, given[name], f"unknown; known for a sink are {known}")
        payload = None
        if {"payload", "schemafile", "schemamessage"} & given.keys():
            from dlog.spark.payload import PayloadOptions

            payload = PayloadOptions.parse(given)
        if payload is None and "schemaheader" in given:
            reason = "it is about payloads of columns; give payload too"
            raise InvalidOption("schemaheader", given["schemaheader"], reason)
        return cls(
            payload=payload,
            schema_header=_flag(given, "schemaheader", default=False),
            log=_log(given),
            logs=_logs(given),
            inline_bytes_max=_bytes(given, "inlinebytesmax", INLINE_BYTES, INLINE_BYTES_MAX),
            create_logs=_flag(given, "createlogs", default=True),
            write_id=_write_id(given),
            write_number=_write_number(given),
            settings=_settings(given),
        )


def origin_of_write(write_id: str) -> UUID:
    """Return the origin that batch writes of this name commit as."""
    return uuid5(_WRITES, write_id)


KNOWN: Final = frozenset(name.lower() for name in SINK)


def _log(given: Mapping[str, str]) -> str | None:
    # `start("orders")` and `save("orders")` arrive as the option `path`.
    if "path" in given and "log" in given and given["path"] != given["log"]:
        reason = f"the path says {given['path']!r}; name the log once"
        raise InvalidOption("log", given["log"], reason)
    name = "log" if "log" in given else "path"
    return _name(name, given[name].strip()) if given.get(name, "").strip() else None


def _logs(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("logs", "")
    return tuple(sorted({_name("logs", each.strip()) for each in text.split(",") if each.strip()}))


def _name(option: str, text: str) -> str:
    try:
        check_name(text)
    except InvalidName as error:
        raise InvalidOption(option, text, error.reason) from error
    return text


def _bytes(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    try:
        return size_bytes(given.get(name, default), as_written(name), most=most)
    except InvalidValue as error:
        raise InvalidOption(name, given[name], error.reason) from error


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    try:
        return flag_of(given.get(name, default), as_written(name))
    except InvalidValue as error:
        raise InvalidOption(name, given[name], error.reason) from error


def _write_id(given: Mapping[str, str]) -> str | None:
    text = given.get("writeid")
    if text is not None and not text.strip():
        raise InvalidOption(
            "writeid", text, "it must not be empty; leave it out, or name the write"
        )
    return text


def _write_number(given: Mapping[str, str]) -> int:
    text = given.get("writenumber")
    if text is None:
        return 0
    if "writeid" not in given:
        raise InvalidOption(
            "writenumber", text, "it numbers the writes of a writeId; give that, too"
        )
    try:
        return count_of(text, "writeNumber", least=0, most=NUMBER_MAX)
    except InvalidValue as error:
        raise InvalidOption("writenumber", text, error.reason) from error


def _settings(given: Mapping[str, str]) -> LogSettings | None:
    values = {
        name.removeprefix(SETTING_PREFIX): text
        for name, text in given.items()
        if name.startswith(SETTING_PREFIX)
    }
    if not values:
        return None
    try:
        return parse_settings(values)
    except InvalidSettings as error:
        raise InvalidOption(
            SETTING_PREFIX + error.setting, str(error.value), error.reason
        ) from error
    except InvalidQuorum as error:
        raise InvalidOption(SETTING_PREFIX + "ensemble", str(values), str(error)) from error
