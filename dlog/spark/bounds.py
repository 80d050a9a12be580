"""Where reading begins and ends, as users say it: for all logs, or for each by its name.

One place is said in one of three ways: by offset, by time or by txid. A log that a JSON object
does not name begins at its first record and ends at its last one.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

from dlog.position import TXID_MAX, Timestamp, Txid
from dlog.spark.errors import InvalidOption

Place = Literal["start", "end"] | int | Txid | Timestamp
"""What `dlog.position.Start` is, without the physical place."""
_Side = Literal["starting", "ending"]
_WAYS: Final = ("offsets", "timestamp", "txid")


@dataclass(frozen=True, slots=True)
class Bounds:
    """One end of what is read."""

    option: str
    """The option that says so, for messages."""
    default: Place
    by_log: Mapping[str, Place] = field(default_factory=dict)

    def of(self, log: str) -> Place:
        return self.by_log.get(log, self.default)

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs that it names, in order."""
        return tuple(sorted(self.by_log))


def parse_bounds(given: Mapping[str, str], side: _Side) -> Bounds:
    """Read the options of one *side* from *given*; raises InvalidOption."""
    names = [side + way for way in _WAYS if side + way in given]
    if len(names) > 1:
        reason = f"{side} is said by one option, and {' and '.join(names)} are given"
        raise InvalidOption(names[1], given[names[1]], reason)
    default: Place = "start" if side == "starting" else "end"
    if not names:
        return Bounds(f"{side}offsets", default)
    (name,) = names
    text = given[name].strip()
    if not text.startswith("{"):
        return Bounds(name, _place(name, text, text))
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise InvalidOption(name, text, f"it is no JSON object: {error}") from error
    places = {log: _place(name, text, value, log) for log, value in parsed.items()}
    return Bounds(name, default, places)


def _place(option: str, text: str, value: object, log: str | None = None) -> Place:
    what = "" if log is None else f"{log!r}: {value!r}: "
    if option.endswith("offsets"):
        words = ("earliest", "latest") if option.startswith("starting") else ("latest",)
        if isinstance(value, str) and value.lower() in words:
            return "start" if value.lower() == "earliest" else "end"
        if log is not None and _is_number(value) and int(str(value)) >= 0:
            return int(str(value))
        each = f'an offset for each log: {{"name": 17}}, where {" or ".join(words)} may stand too'
        raise InvalidOption(option, text, f"{what}give {' or '.join(words)}, or {each}")
    if _is_number(value):
        number = int(str(value))
        if option.endswith("txid") and -TXID_MAX <= number <= TXID_MAX:
            return Txid(number)
        if option.endswith("timestamp") and 0 <= number <= _TIME_MS_MAX:
            return Timestamp(number)
    if option.endswith("txid"):
        raise InvalidOption(option, text, f'{what}give a txid, or one for each log: {{"name": 17}}')
    moment = _moment(value)
    if moment is None:
        raise InvalidOption(
            option,
            text,
            f"{what}give milliseconds since 1970, or a moment as 2026-05-01T12:00:00Z, "
            'or one for each log: {"name": ...}',
        )
    return Timestamp(moment)


_TIME_MS_MAX: Final = 2**62
_NUMBER: Final = re.compile(r"-?\d{1,19}")


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, int) and not isinstance(value, bool)


def _moment(value: object) -> int | None:
    """Return the milliseconds of an ISO 8601 text; UTC unless it says otherwise."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    # Rounded up: from half a millisecond on means from the next one on, as records have whole ones.
    micros = (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
    return -(-micros // 1000) if micros >= 0 else None
