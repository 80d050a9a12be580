"""What a user may say about a `dlog` source, checked once and in one place.

Spark hands options over as strings under lower-case keys. Unknown ones are refused: a misspelt
limit that is ignored in silence is found in production.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dlog.spark.errors import InvalidOption

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
PARTITIONS_MAX: Final = 8
TASK_RECORDS_MIN: Final = 65_536
POLL_MS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one source; the names in the messages are the ones that users write."""

    logs: tuple[str, ...]
    uri: str | None = None
    """Namespace; none means the environment's or the local cluster's."""
    starting_offsets: str | tuple[tuple[str, int], ...] = EARLIEST
    """Where a new query starts: earliest, latest, or an offset for each log by name."""
    ending_offsets: str | tuple[tuple[str, int], ...] = LATEST
    """Where a batch read ends (exclusive)."""
    records_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    partitions_max: int = PARTITIONS_MAX
    """More tasks than this are never planned for one micro-batch."""
    task_records_min: int = TASK_RECORDS_MIN
    """A task costs Spark about 30 ms, so fewer records than this are not worth another one."""
    poll_ms: int = POLL_MS
    """How long the source waits for new records before it says that there are none."""
    include_headers: bool = False
    """Whether there is a column `headers`, as Spark's Kafka source has it."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Read Spark's options; raises InvalidOption with the name the user wrote."""
        given = {name.lower(): value for name, value in options.items()}
        for name in sorted(given):
            if name not in _KNOWN:
                raise InvalidOption(name, given[name], f"unknown; known are {', '.join(_KNOWN)}")
        return cls(
            logs=_logs(given),
            uri=given.get("uri"),
            starting_offsets=_offsets(given, "startingoffsets", EARLIEST),
            ending_offsets=_offsets(given, "endingoffsets", LATEST),
            records_per_trigger_max=_optional(given, "maxrecordspertrigger"),
            bytes_per_trigger_max=_optional(given, "maxbytespertrigger"),
            partitions_max=_number(given, "maxpartitions", PARTITIONS_MAX),
            task_records_min=_number(given, "mintaskrecords", TASK_RECORDS_MIN),
            poll_ms=_number(given, "pollms", POLL_MS, most=500),
            include_headers=_flag(given, "includeheaders"),
        )

    def starting(self, log: str) -> str | int:
        """Where *log* starts in a new query: EARLIEST, LATEST or an offset."""
        return _choose(self.starting_offsets, log, EARLIEST)

    def ending(self, log: str) -> str | int:
        """Where a batch read of *log* ends: LATEST or an offset (exclusive)."""
        return _choose(self.ending_offsets, log, LATEST)


_KNOWN: Final = (
    "logs",
    "path",
    "uri",
    "startingoffsets",
    "endingoffsets",
    "maxrecordspertrigger",
    "maxbytespertrigger",
    "maxpartitions",
    "mintaskrecords",
    "pollms",
    "includeheaders",
)


def _logs(given: Mapping[str, str]) -> tuple[str, ...]:
    # `load("flights")` arrives as the option `path`.
    text = given.get("logs", given.get("path", ""))
    logs = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
    if not logs:
        raise InvalidOption("logs", text, "name at least one log: logs='a,b' or load('a')")
    return logs


def _offsets(
    given: Mapping[str, str], name: str, default: str
) -> str | tuple[tuple[str, int], ...]:
    text = given.get(name, default).strip()
    allowed = (EARLIEST, LATEST) if default == EARLIEST else (LATEST,)
    if text.lower() in allowed:
        return text.lower()
    reason = f'give {" or ".join(allowed)}, or an offset for each log: {{"name": 17}}'
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise InvalidOption(name, text, reason) from error
    if not isinstance(parsed, dict):
        raise InvalidOption(name, text, reason)
    for log, offset in parsed.items():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise InvalidOption(name, text, f"{log!r}: {offset!r} is not an offset; {reason}")
    return tuple(sorted(parsed.items()))


def _choose(chosen: str | tuple[tuple[str, int], ...], log: str, default: str) -> str | int:
    if isinstance(chosen, str):
        return chosen
    return dict(chosen).get(log, default)


def _number(given: Mapping[str, str], name: str, default: int, *, most: int | None = None) -> int:
    text = given.get(name)
    if text is None:
        return default
    allowed = "a whole number from 1" + (f" to {most}" if most is not None else "")
    try:
        number = int(text)
    except ValueError as error:
        raise InvalidOption(name, text, f"it must be {allowed}") from error
    if number < 1 or (most is not None and number > most):
        raise InvalidOption(name, text, f"it must be {allowed}")
    return number


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false")
    if text.lower() not in ("true", "false"):
        raise InvalidOption(name, text, "it must be true or false")
    return text.lower() == "true"


def _optional(given: Mapping[str, str], name: str) -> int | None:
    return _number(given, name, 1) if name in given else None
