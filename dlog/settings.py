"""Settings of one log: chosen when it is created, kept in its manifest.

Every program that opens the log finds the same ones. A limit of 0 means "no limit".
Values from outside (a configuration file, a command line) come in by `parse_settings`, which
knows each setting by a plain name and refuses what it does not know.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import UnionType
from typing import Final

from dlog.encryption.names import NAME_ALLOWED, is_key_name
from dlog.errors import InvalidSettings
from dlog.recordbatch import ZSTD_LEVEL_MAX, Codec
from ledger.entry import Digest
from ledger.errors import InvalidValue
from ledger.quorum import Quorum
from ledger.values import VALUE_MAX, count_of, duration_s, flag_of, nearest, size_bytes

RECORD_BYTES_LIMIT: Final = 16 * 1024 * 1024
"""No log may allow larger records: an entry must hold at least one."""
LIMIT_MAX: Final = VALUE_MAX
"""No limit of bytes, records or seconds is larger."""

_CODECS: Final = [
    f"zstd, zstd:1 to zstd:{ZSTD_LEVEL_MAX} (its level)"
    if codec is Codec.ZSTD
    else codec.name.lower()
    for codec in Codec
]
CODECS_ALLOWED: Final = f"{', '.join(_CODECS[:-1])}, or {_CODECS[-1]}"
"""What `parse_codec` takes, for people."""

_ZSTD_LEVELS: Final = tuple(map(str, range(1, ZSTD_LEVEL_MAX + 1)))
_KINDS: Final = (("quorum", Quorum), ("digest", Digest), ("codec", Codec))
_SIZES: Final = ("roll_bytes", "retention_bytes", "archive_after_bytes", "local_keep_bytes")
_COUNTS: Final = (*_SIZES, "roll_records")
_SECONDS: Final = (
    "roll_age_s",
    "roll_idle_s",
    "retention_age_s",
    "archive_after_s",
    "local_keep_s",
)
_WITH_UNITS: Final = ("record_bytes_max", *_SIZES, *_SECONDS)
_SWITCHES: Final = ("retention_waits_for_consumers", "degraded_writes")
_SECOND_MIN: Final = 0.001
STORAGE_URI: Final = re.compile(
    r"(?:(?:s3|gs|az)://[A-Za-z0-9._-]+|file://)(?:/[A-Za-z0-9._+= -]+)+"
)
"""A prefix or a directory is always named, so that objects of others are never beside those of a
log."""
STORAGE_CHARS_MAX: Final = 512
TABLES: Final = ("", "parquet", "parquet:none")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Sizes may be given as text, as "256M", and times as "7d" (`ledger.values`). Raises
    `InvalidSettings` if a value is out of its range."""

    quorum: Quorum = field(default_factory=Quorum)
    """Replication of the log's ledgers."""
    digest: Digest = Digest.CRC32C
    codec: Codec = Codec.NONE
    """Compression of record batches; zstd pays for text on slow disks or networks.

    By name it is given together with its level, as "zstd:3"."""
    codec_level: int = 0
    """How hard zstd tries, 1 to 19: each step is slower and most are smaller. 0: the default."""
    encrypt_with: str = ""
    """Name of the wrapping key with which keys, values and headers are encrypted, from the next
    segment on. Empty: they are not. Each writer and reader needs the key."""
    record_bytes_max: int = 1024 * 1024
    """Largest record, key included. Up to 16 MiB; smaller keeps latency even."""
    roll_bytes: int = 1024 * 1024 * 1024
    """Start a new segment after so many bytes: the unit in which space is freed."""
    roll_age_s: float = 2 * 3600.0
    """Start a new segment when the present one is older and not empty, by a timer."""
    roll_records: int = 0
    """Start a new segment after so many records."""
    roll_idle_s: float = 0.0
    """Start a new segment when the present one has records, and got none for so long."""
    retention_bytes: int = 0
    """Trim whole segments while those after them hold so many bytes, or more."""
    retention_age_s: float = 0.0
    """Trim whole segments whose last record is older."""
    retention_waits_for_consumers: bool = False
    """Retention trims nothing that a named consumer of the log has not processed yet."""
    degraded_writes: bool = True
    """Begin a segment also if there are too few bookies, and name some that are away, as long as Qa
    of each write set are there to acknowledge, and Qw - Qa + 1 to recover. Repair makes the missing
    copies. False: wait for bookies."""
    archive: str = ""
    """URI of the object storage that sealed segments are copied to: s3://BUCKET/PREFIX, gs://, az://
    or file:///DIRECTORY. Empty: none. It stays as long as the log has objects there."""
    archive_after_s: float = 0.0
    """Copy a sealed segment once its last record is older. 0 here and in `archive_after_bytes`: at
    the archiver's next pass."""
    local_keep_s: float = 0.0
    """Keep a copied segment on bookies until its last record is older. 0 here and in
    `local_keep_bytes`: delete it there once its object is verified."""
    archive_after_bytes: int = 0
    """Copy a sealed segment once so many payload bytes are sealed behind it, or it is as old as
    `archive_after_s` says."""
    local_keep_bytes: int = 0
    """Keep copied segments on bookies up to so many payload bytes, the newest, unless they are
    older than `local_keep_s` says."""
    archive_table: str = ""
    """Keep archived records as a table beside the objects, too: "parquet", files by day of the
    records' timestamps; "parquet:none", not by day. Empty: no table. Needs `archive`."""

    def __post_init__(self) -> None:
        for name in (name for name in _WITH_UNITS if isinstance(getattr(self, name), str)):
            object.__setattr__(self, name, _PARSERS[name](name, getattr(self, name)))
        for name, kind in _KINDS:
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise InvalidSettings(name, value, f"use a {kind.__name__}")
        _check_type("codec_level", self.codec_level, int)
        level_max = ZSTD_LEVEL_MAX if self.codec is Codec.ZSTD else 0
        if not 0 <= self.codec_level <= level_max:
            raise InvalidSettings("codec_level", self.codec_level, f"use {CODECS_ALLOWED}")
        if not isinstance(self.encrypt_with, str):
            raise InvalidSettings("encrypt_with", self.encrypt_with, "use the name of a key")
        if self.encrypt_with and not is_key_name(self.encrypt_with):
            shown = "..."  # it may be the key itself
            raise InvalidSettings("encrypt_with", shown, f"the name of a key is {NAME_ALLOWED}")
        object.__setattr__(self, "archive", _storage("archive", self.archive))
        _check_type("record_bytes_max", self.record_bytes_max, int)
        if not 1 <= self.record_bytes_max <= RECORD_BYTES_LIMIT:
            raise InvalidSettings(
                "record_bytes_max", self.record_bytes_max, f"use 1 to {RECORD_BYTES_LIMIT}"
            )
        for name in _COUNTS:
            count = getattr(self, name)
            _check_type(name, count, int)
            if not 0 <= count <= LIMIT_MAX:
                raise InvalidSettings(name, count, "use 0 for no limit, or more")
        for name in _SECONDS:
            seconds = getattr(self, name)
            _check_type(name, seconds, int | float)
            if not (seconds == 0 or _SECOND_MIN <= seconds <= LIMIT_MAX):
                raise InvalidSettings(name, seconds, "use 0 for no limit, or a millisecond or more")
        self._check_table()
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InvalidSettings(name, getattr(self, name), "use true or false")

    def _check_table(self) -> None:
        if self.archive_table not in TABLES:
            allowed = " or ".join(TABLES[1:])
            raise InvalidSettings("archive_table", self.archive_table, f"use {allowed}")
        if self.archive_table and not self.archive:
            reason = "a table is beside the objects of a log: set archive too"
            raise InvalidSettings("archive_table", self.archive_table, reason)
        if self.archive_table and self.encrypt_with:
            reason = "records of an encrypted log would leave it in plain text; it has no table"
            raise InvalidSettings("archive_table", self.archive_table, reason)


def parse_settings(values: Mapping[str, object], base: LogSettings | None = None) -> LogSettings:
    """Return *base* (the defaults) changed by *values*, by name.

    Names are the fields of `LogSettings`, with the quorum as `ensemble`, `write_quorum` and
    `ack_quorum`. Sizes may be text as "256M", times as "7d" (`ledger.values`); `digest` and `codec`
    may be given by name, as "zstd" or "zstd:3", and `codec` says its level, too: without one it is
    the default's. Raises `InvalidSettings` for a name
    that does not exist (it names those that do) and for a value out of its range, and
    `InvalidQuorum`."""
    base = base or LogSettings()
    for name in values:
        if name not in SETTING_NAMES:
            near = nearest(name, SETTING_NAMES)
            meant = "" if near is None else f"did you mean {near}? "
            there = f"{meant}There are" if meant else "there are"
            reason = f"there is no such setting; {there} {', '.join(SETTING_NAMES)}"
            raise InvalidSettings(name, values[name], reason)
    fields = {name: parse(name, values[name]) for name, parse in _PARSERS.items() if name in values}
    if "codec" in values:
        fields["codec_level"] = parse_codec(values["codec"])[1]
    quorum = [
        _integer(name, values.get(name, present))
        for name, present in zip(
            _QUORUM, (base.quorum.ensemble, base.quorum.write, base.quorum.ack), strict=True
        )
    ]
    return replace(base, quorum=Quorum(*quorum), **fields)  # type: ignore[arg-type] # by name


def settings_facts(settings: LogSettings) -> dict[str, int | float | str]:
    """Return all settings by name, as `parse_settings` takes them."""
    quorum = settings.quorum
    facts: dict[str, int | float | str] = dict(
        zip(_QUORUM, (quorum.ensemble, quorum.write, quorum.ack), strict=True)
    )
    for name in _PARSERS:
        value = getattr(settings, name)
        facts[name] = value.name.lower() if isinstance(value, IntEnum) else value
    facts["codec"] = codec_name(settings)
    return facts


def parse_codec(value: object) -> tuple[Codec, int]:
    """Return the codec that *value* names, as "zstd:3", and its level: 0 if it names none.

    Raises `InvalidSettings`, which says what may be named."""
    if isinstance(value, Codec):
        return value, 0
    name, colon, level = value.lower().partition(":") if isinstance(value, str) else ("", "", "")
    codec = Codec.__members__.get(name.upper())
    if codec is not None and not colon:
        return codec, 0
    if codec is Codec.ZSTD and level in _ZSTD_LEVELS:
        return codec, int(level)
    raise InvalidSettings("codec", value, f"use {CODECS_ALLOWED}")


def codec_name(settings: LogSettings) -> str:
    """Return codec and level as `parse_codec` takes them."""
    name, level = settings.codec.name.lower(), settings.codec_level
    return f"{name}:{level}" if level else name


def _check_type(name: str, value: object, wanted: type | UnionType) -> None:
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise InvalidSettings(name, value, "use a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidSettings(name, value, "use a finite number")


def _settled(parse: Callable[[object, str], object]) -> Callable[[str, object], object]:
    """Return *parse* of `ledger.values`, as one of a setting. Ranges are for `LogSettings`."""

    def parsed(name: str, value: object) -> object:
        try:
            return parse(value, name)
        except InvalidValue as error:
            raise InvalidSettings(name, value, error.reason) from error

    return parsed


def _integer(name: str, value: object) -> int:
    found = _settled(count_of)(name, value)
    assert isinstance(found, int)
    return found


def _codec(_: str, value: object) -> Codec:
    return parse_codec(value)[0]


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSettings(name, value, "use text")
    return value


def _storage(name: str, value: object) -> str:
    """Return the URI of an object storage, without a slash at its end; empty: none."""
    uri = _text(name, value).rstrip("/")
    if uri and not (STORAGE_URI.fullmatch(uri) and len(uri) <= STORAGE_CHARS_MAX):
        shown = "..."  # it may have a password
        raise InvalidSettings(
            name,
            shown,
            "use s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX or "
            f"file:///DIRECTORY, with {STORAGE_CHARS_MAX} characters at most and no credentials",
        )
    return uri


def _choice(kind: type[IntEnum]) -> Callable[[str, object], IntEnum]:
    def parse(name: str, value: object) -> IntEnum:
        if isinstance(value, kind):
            return value
        if isinstance(value, str) and value.upper() in kind.__members__:
            return kind[value.upper()]
        raise InvalidSettings(name, value, f"use {', '.join(m.name.lower() for m in kind)}")

    return parse


_QUORUM: Final = ("ensemble", "write_quorum", "ack_quorum")
_PARSERS: Final[dict[str, Callable[[str, object], object]]] = {
    "digest": _choice(Digest),
    "codec": _codec,
    "encrypt_with": _text,
    "record_bytes_max": _settled(size_bytes),
    "roll_bytes": _settled(size_bytes),
    "roll_age_s": _settled(duration_s),
    "roll_records": _settled(count_of),
    "roll_idle_s": _settled(duration_s),
    "retention_bytes": _settled(size_bytes),
    "retention_age_s": _settled(duration_s),
    "retention_waits_for_consumers": _settled(flag_of),
    "degraded_writes": _settled(flag_of),
    "archive": _storage,
    "archive_after_s": _settled(duration_s),
    "local_keep_s": _settled(duration_s),
    "archive_after_bytes": _settled(size_bytes),
    "local_keep_bytes": _settled(size_bytes),
    "archive_table": _text,
}
SETTING_NAMES: Final = (*_QUORUM, *_PARSERS)
