"""The options of a `dlog` source, checked once and in one place.

Spark hands options over as strings under lower-case keys. Unknown ones are refused: a misspelt
limit that is ignored in silence is found in production.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from dlog.errors import InvalidName
from dlog.names import check_name
from dlog.row_schema import COLUMNS, COLUMNS_WITH_HEADERS
from dlog.spark.errors import SOURCE, InvalidOption, as_written
from dlog.spark.plan import TASKS_MAX
from dlog.spark.selection import Bounds, Selection, parse_bounds, parse_selection
from ledger.errors import InvalidValue
from ledger.log_events import now_ms
from ledger.values import VALUE_MAX, count_of, duration_s, flag_of, size_bytes

if TYPE_CHECKING:
    from dlog.spark.payload import PayloadOptions, PayloadView

T = TypeVar("T")

PARTITIONS_MAX: Final = 8
TASK_RECORDS_MIN: Final = 65_536
TASK_BYTES_MAX: Final = 128 << 20
POLL_MS: Final = 2000
POLL_MS_MAX: Final = 5000
TRIGGER_DELAY: Final = "15m"

_KNOWN: Final = frozenset(name.lower() for name in SOURCE)
_OF_KAFKA: Final = {
    "subscribe": "logs",
    "subscribepattern": "logsPattern",
    "kafka.bootstrap.servers": "uri",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "minoffsetspertrigger": "minRecordsPerTrigger",
    "maxrecordsperpartition": "minPartitions, or maxBytesPerTask",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "kafka.group.id": "consumer",
}
"""Options of Spark's Kafka source, and what they are called here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one source; the names in the messages are the ones that users write."""

    selection: Selection
    starting: Bounds
    """Where a new query, or a batch read, starts."""
    ending: Bounds
    """Where a batch read ends (exclusive)."""
    ending_is_given: bool = False
    records_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    records_per_trigger_min: int | None = None
    """A micro-batch is held back until so many records wait."""
    trigger_delay_s: float = 900.0
    """No longer than this."""
    partitions_min: int = 1
    """At least so many tasks, if there are so many records."""
    partitions_max: int = PARTITIONS_MAX
    """More tasks than this are not planned for the number of records."""
    tasks_max: int = TASKS_MAX
    """More tasks than this are never planned for one micro-batch."""
    task_records_min: int = TASK_RECORDS_MIN
    """A task costs Spark about 30 ms, so fewer records than this are not worth another one."""
    task_bytes_max: int = TASK_BYTES_MAX
    """But what a task reads has no more bytes than this, or is more by one record."""
    fail_on_data_loss: bool = True
    """Whether the query fails if records that it did not read are gone."""
    consumer: str | None = None
    """The named consumer of each log that is moved as Spark commits."""
    pushdown: bool = False
    """Whether batch reads skip what no filter of theirs lets through."""
    timestamps_ascend: bool = False
    """Whether a filter on the timestamp may say so: within each segment, timestamps ascend."""
    table: bool = False
    """Whether batch reads take the rows that a log's table has from there."""
    poll_ms: int = POLL_MS
    """How long the source waits for new records before it says that there are none."""
    columns: tuple[str, ...] = COLUMNS
    """Which ones rows have, in order: Spark has no column pruning for Python sources."""
    payload: "PayloadOptions | None" = None
    """How payloads become columns; None: they stay bytes."""
    view: "PayloadView | None" = None
    """The columns of a read that has *payload*: found once, when the frame is made."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Read Spark's options; raises InvalidOption with the name the user wrote."""
        given = {name.lower(): value for name, value in options.items()}
        for name in sorted(given):
            if name not in _KNOWN:
                raise InvalidOption(name, given[name], _why_unknown(name))
        payload = None
        if {"payload", "schemafile", "schemamessage", "mode"} & given.keys():
            from dlog.spark.payload import PayloadOptions

            payload = PayloadOptions.parse(given)
        parsed = cls(
            selection=parse_selection(given),
            starting=parse_bounds(given, "starting", now_ms),
            ending=parse_bounds(given, "ending", now_ms),
            ending_is_given=any(name.startswith("ending") for name in given),
            records_per_trigger_max=_optional(given, "maxrecordspertrigger"),
            bytes_per_trigger_max=_bytes(given, "maxbytespertrigger"),
            records_per_trigger_min=_optional(given, "minrecordspertrigger"),
            trigger_delay_s=_duration_s(given, "maxtriggerdelay", TRIGGER_DELAY),
            partitions_min=_number(given, "minpartitions", 1),
            partitions_max=_number(given, "maxpartitions", _partitions_max(given)),
            tasks_max=_number(given, "maxpartitions", TASKS_MAX),
            task_bytes_max=_bytes(given, "maxbytespertask") or TASK_BYTES_MAX,
            task_records_min=_number(given, "mintaskrecords", TASK_RECORDS_MIN),
            fail_on_data_loss=_flag(given, "failondataloss", default=True),
            consumer=_consumer(given),
            pushdown=_flag(given, "pushdown"),
            timestamps_ascend=_flag(given, "timestampsascend"),
            table=_table(given),
            poll_ms=_poll_ms(given),
            columns=_columns(given) if payload is None else COLUMNS,
            payload=payload,
        )
        _check_relations(parsed, given)
        return parsed

    def check_streaming(self) -> None:
        """Raise InvalidOption if something is said that no stream can do."""
        if self.ending_is_given:
            reason = "a stream has no end; it is for batch reads (spark.read)"
            raise InvalidOption(self.ending.option, "", reason)
        if self.table:
            reason = (
                "a stream reads the log; read the table by a batch up to some offset, and start "
                "the stream there (endingOffsets, startingOffsets)"
            )
            raise InvalidOption("table", "parquet", reason)


def _why_unknown(name: str) -> str:
    if name in _OF_KAFKA:
        return f"this option of Spark's Kafka source is called {_OF_KAFKA[name]} here"
    return f"unknown; known are {', '.join(SOURCE)}"


def _check_relations(parsed: SourceOptions, given: Mapping[str, str]) -> None:
    for bounds in (parsed.starting, parsed.ending):
        for log in bounds.logs:
            if not parsed.selection.chosen(log):
                reason = f"{log!r} is none of the logs that are read"
                raise InvalidOption(bounds.option, given[bounds.option.lower()], reason)
    if parsed.partitions_min > parsed.partitions_max:
        reason = f"it is more than maxPartitions, {parsed.partitions_max}"
        raise InvalidOption("minpartitions", given["minpartitions"], reason)
    least, most = parsed.records_per_trigger_min, parsed.records_per_trigger_max
    if least is not None and most is not None and least > most:
        reason = f"it is more than maxRecordsPerTrigger, {most}"
        raise InvalidOption("minrecordspertrigger", str(least), reason)
    if parsed.timestamps_ascend and not parsed.pushdown:
        reason = "it is about filters that are pushed down, and none is; give pushdown too"
        raise InvalidOption("timestampsascend", given["timestampsascend"], reason)
    if least is None and "maxtriggerdelay" in given:
        reason = "nothing is held back without minRecordsPerTrigger; give that too"
        raise InvalidOption("maxtriggerdelay", given["maxtriggerdelay"], reason)


def _partitions_max(given: Mapping[str, str]) -> int:
    """Return the default: who asks for more partitions at least gets them."""
    return max(PARTITIONS_MAX, _number(given, "minpartitions", 1))


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = _flag(given, "includeheaders")
    if "columns" not in given:
        return COLUMNS_WITH_HEADERS if with_headers else COLUMNS
    text = given["columns"]
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    known = f"known are {', '.join(COLUMNS_WITH_HEADERS)}"
    if not names:
        raise InvalidOption("columns", text, f"name one column at least; {known}")
    for name in names:
        if name not in COLUMNS_WITH_HEADERS:
            raise InvalidOption("columns", text, f"there is no column {name!r}; {known}")
    if len(set(names)) < len(names):
        raise InvalidOption("columns", text, "name each column once")
    if with_headers and "headers" not in names:
        raise InvalidOption("columns", text, "includeHeaders is given, and headers is not named")
    return names


def _table(given: Mapping[str, str]) -> bool:
    if given.get("table", "parquet").lower() != "parquet":
        raise InvalidOption("table", given["table"], "use parquet, or leave it out")
    return "table" in given


def _consumer(given: Mapping[str, str]) -> str | None:
    name = given.get("consumer")
    if name is None:
        return None
    try:
        return check_name(name)
    except InvalidName as error:
        raise InvalidOption("consumer", name, str(error)) from error


def _number(given: Mapping[str, str], name: str, default: int, *, most: int = VALUE_MAX) -> int:
    if name not in given:
        return default
    return _valid(lambda: count_of(given[name], as_written(name), least=1, most=most))


def _duration_s(given: Mapping[str, str], name: str, default: str) -> float:
    return _valid(lambda: duration_s(given.get(name, default), as_written(name), least=0.001))


def _poll_ms(given: Mapping[str, str]) -> int:
    if "pollms" not in given:
        return POLL_MS
    most = POLL_MS_MAX / 1000
    return round(
        1000
        * _valid(lambda: duration_s(given["pollms"], "pollMs", least=0.001, most=most, unit="ms"))
    )


def _bytes(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    return _valid(lambda: size_bytes(given[name], as_written(name), least=1))


def _flag(given: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    return _valid(lambda: flag_of(given.get(name, default), as_written(name)))


def _optional(given: Mapping[str, str], name: str) -> int | None:
    return _number(given, name, 1) if name in given else None


def _valid(parse: Callable[[], T]) -> T:
    """Return what *parse* returns; what it refuses is an option of ours."""
    try:
        return parse()
    except InvalidValue as error:
        raise InvalidOption(error.name, str(error.value), error.reason) from error
