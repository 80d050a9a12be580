"""The page of all settings: of a process, of a log, and of the objects that programs make.

Names, defaults and meanings are those of the models. What is allowed is said by pydantic's own
bounds, or by the sentence with which the code refuses what is not.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from bookie.autorecovery.process import AutorecoveryConfig
from bookie.autorecovery.protocol.audit import AuditConfig
from bookie.autorecovery.worker import WorkerConfig
from bookie.collector.plan import CollectorConfig
from bookie.config import BookieConfig
from bookie.disk.watch import DiskLimits
from bookie.errors import InvalidSetting
from bookie.server.limits import ServiceConfig
from bookie.storage.config import StorageConfig
from dlog.aio.maintain.janitor import JanitorConfig
from dlog.config import ENV_PREFIX
from dlog.errors import InvalidSettings
from dlog.process_settings import ProcessSettings
from dlog.settings import SETTING_NAMES, LogSettings, parse_settings, settings_facts
from docs.site.attributes import attribute_docs
from docs.site.markdown import code, table
from ledger.client import ClientConfig
from ledger.errors import InvalidValue
from ledger.protocol.placement import QuarantineConfig
from ledger.quorum import ENSEMBLE_MAX

_HEAD = """\
# Settings

Made of the models in the code: what there is to set, what it is unless it is set, and what is
allowed. Durations are seconds and sizes bytes; where a value is text (environment, file, command
line, `parse_settings`) they may have a unit, as `15m` or `256M`: [durations and
sizes](cli.md#positions-times-sizes). Settings of Spark's source and sink are in [Spark](spark.md),
those of commands are [options](commands.md).
"""
_PROCESS = """
## Of a process

By the argument of a call, else by the environment, else in the TOML file that `DLOG_CONFIG` names
(`~/.dlog/config.toml` unless set), else the default. What means nothing is refused. `DLOG_CONFIG`,
`DLOG_DEBUG` and `DLOG_METRICS` are read from the environment alone ([what they
do](cli.md#environment)).
"""
_LOG = """
## Of a log

Given when the log is created (`LogSettings`, or a mapping by name: `settings={"codec": "zstd:3"}`;
`dlog log create --set NAME=VALUE`), kept with it, and changed beside its writer ([when that
counts](keeping.md#retention)).
"""
_OBJECTS: Final[dict[str, tuple[str, tuple[type[Any], ...]]]] = {
    "Of a client of ledgers": (
        "For programs that use ledgers without logs: [a guide](ledgers.md).",
        (ClientConfig, QuarantineConfig),
    ),
    "Of a janitor": (
        "`dlog.aio.maintain.janitor`; `dlog janitor run` has them as options.",
        (JanitorConfig,),
    ),
    "Of a bookie": (
        "What people set has an option of [`dlog bookie start`](commands.md#dlog-bookie-start); "
        "the others are for programs that run a bookie themselves.",
        (BookieConfig, StorageConfig, DiskLimits, CollectorConfig, ServiceConfig),
    ),
    "Of a process of repair": (
        "What people set has an option of "
        "[`dlog autorecovery start`](commands.md#dlog-autorecovery-start).",
        (AutorecoveryConfig, AuditConfig, WorkerConfig),
    ),
}
_QUORUM: Final = {
    "ensemble": "E: how many bookies a segment is spread over.",
    "write_quorum": "Qw: how many of them get each entry, which is how many copies there are.",
    "ack_quorum": "Qa: how many of those have an entry on disk before it is acknowledged.",
}
_MIB: Final = 1024 * 1024
_OFF: Final[tuple[object, ...]] = (-1, math.nan, 2.0**80, 2**80)
"""Values that hardly any number may have."""


def page() -> str:
    """Return the page."""
    parts = [_HEAD, _PROCESS, "\n", _of_a_process(), _LOG, "\n", _of_a_log()]
    for title, (about, kinds) in _OBJECTS.items():
        parts.append(f"\n## {title}\n\n{about}\n")
        parts += [f"\n### `{kind.__name__}`\n\n{_of(kind)}" for kind in kinds]
    return "".join(parts)


def _of_a_process() -> str:
    docs = attribute_docs(ProcessSettings)
    rows = [
        (
            code(f"{ENV_PREFIX}{name.upper()}"),
            code(name),
            _unit(name),
            _shown(info.default),
            ", ".join(_bounds(info.metadata)),
            docs[name],
        )
        for name, info in ProcessSettings.model_fields.items()
    ]
    return table(("environment", "in the file", "unit", "default", "allowed", "what it says"), rows)


def _bounds(metadata: list[Any]) -> Iterator[str]:
    words = {
        "ge": "{:g} or more",
        "gt": "more than {:g}",
        "le": "{:g} or less",
        "lt": "less than {:g}",
    }
    for each in metadata:
        yield from (
            said.format(getattr(each, name)) for name, said in words.items() if hasattr(each, name)
        )


def _of_a_log() -> str:
    docs = attribute_docs(LogSettings) | _QUORUM
    rows = [
        (code(name), _unit(name), _shown(default), _allowed_of_a_log(name), docs.get(name, ""))
        for name, default in settings_facts(LogSettings()).items()
        if name in SETTING_NAMES
    ]
    return table(("setting", "unit", "default", "allowed", "what it says"), rows)


def _allowed_of_a_log(name: str) -> str:
    if name in _QUORUM:
        return f"1 to {ENSEMBLE_MAX}, and E >= Qw >= Qa"
    by_range = _refusal(lambda value: _log_settings(name, value), (-1, "?"))
    by_name = _refusal(lambda value: parse_settings({name: value}), ("?",))
    return by_name if name in ("codec", "digest") else by_range


def _log_settings(name: str, value: Any) -> LogSettings:
    return replace(LogSettings(), **{name: value})


def _of(kind: type[Any]) -> str:
    docs = attribute_docs(kind)
    rows = [
        (
            code(each.name),
            _unit(each.name),
            _default(each),
            _allowed(kind, each.name),
            docs.get(each.name, ""),
        )
        for each in fields(kind)
        if "for tests" not in docs.get(each.name, "")
    ]
    return table(("setting", "unit", "default", "allowed", "what it says"), rows)


def _unit(name: str) -> str:
    """Return what the last words of a name say of its unit."""
    if name.endswith("bytes_per_s"):
        return "bytes/s"
    for ending, unit in (("_s", "s"), ("_s_max", "s"), ("_share", "share")):
        if name.endswith(ending):
            return unit
    return "bytes" if "_bytes" in name else ""


def _default(field: Any) -> str:
    if field.default is not MISSING:
        return _shown(field.default)
    if field.default_factory is MISSING:
        return "required"
    return _shown(field.default_factory())


def _shown(value: object) -> str:
    if value is None or value in ("", ()):
        return "none"
    if is_dataclass(value) or not isinstance(value, (bool, int, float, str)):
        return code(type(value).__name__)
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, (int, float)) and value >= _MIB and value % _MIB == 0:
        return code(f"{value:.0f}") + f" ({value / _MIB:,.0f} MiB)"
    return code(f"{value:g}" if isinstance(value, float) else value)


def _allowed(kind: type[Any], name: str) -> str:
    needed = {"uri": "memory://x", "directory": Path("x")} if kind is BookieConfig else {}
    return _refusal(lambda value: kind(**needed | {name: value}), _OFF)


def _refusal(given: Callable[[object], object], values: tuple[object, ...]) -> str:
    """Return the sentence with which the first of *values* that is refused is refused."""
    for value in values:
        try:
            given(value)
        except (InvalidSettings, InvalidSetting, InvalidValue) as error:
            return error.reason
        except (AssertionError, TypeError, ValueError, AttributeError, OverflowError):
            continue
    return ""
