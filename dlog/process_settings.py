"""The settings of a process as a model: names, types, units, bounds, and where they come from.

An unknown key of the TOML file is refused, and so is a ``DLOG_`` variable whose
name is close to a known one: a misspelt setting must not be a silent default. Other unknown
variables are warned of once, as orchestrators set some: Kubernetes puts the address of a service
called dlog into ``DLOG_PORT``.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from dlog.config import ENV_PREFIX, InvalidConfig, config_path
from ledger.errors import InvalidValue
from ledger.log_events import get_logger
from ledger.security.settings import TlsSettings, tls_settings
from ledger.values import duration_s, size_bytes

_ENV_OTHERS: Final = frozenset({"DLOG_CONFIG", "DLOG_DEBUG", "DLOG_METRICS"})
_ENV_TESTS: Final = ("DLOG_TEST_", "DLOG_ZK")
"""Read by the test suites only."""
_SERVICE_LINK: Final = re.compile(
    r"DLOG_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
"""What the kubelet calls the addresses of services (``enableServiceLinks``)."""
_NEAR_MISS: Final = 0.65
"""Names of variables this similar (`difflib`) are taken for one that was misspelt."""

_WARNED_MAX: Final = 100
_READINGS_MAX: Final = 16
"""Readings that are kept: of one environment and file, with what different calls give."""

_log = get_logger(__name__)
_warned: set[str] = set()
"""Variables that were warned of in this process."""


def _seconds(value: object) -> float:
    try:
        return duration_s(value, "duration")
    except InvalidValue as error:
        raise ValueError(error.reason) from error


Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A number of seconds, or text with a unit, as "10s"."""


def _bytes(value: object) -> int:
    try:
        return size_bytes(value, "size")
    except InvalidValue as error:
        raise ValueError(error.reason) from error


Bytes = Annotated[int, BeforeValidator(_bytes)]
"""A number of bytes, or text with a unit, as "512M"."""


class ProcessSettings(BaseSettings):
    """What a process was configured with. Made by `read_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    uri: str | None = Field(default=None, repr=False)
    """The namespace; None stands for that of the local cluster."""
    session_timeout_s: Seconds = Field(default=10.0, ge=0.5, le=300.0)
    """How long a dead process may keep its leadership; longer bears longer pauses."""
    timeout_s: Seconds = Field(default=10.0, gt=0.0, le=300.0)
    """How long one call of the metadata store may take."""
    bookie_timeout_s: Seconds = Field(default=5.0, gt=0.0, le=300.0)
    """How long a bookie may take to answer before it counts as unreachable."""
    tls: str | None = None
    """off, optional or required: whether connections have TLS with certificates of both ends."""
    tls_ca: str | None = None
    """File with the certificates of the authorities that are believed."""
    tls_cert: str | None = None
    """File with the certificate of this process."""
    tls_key: str | None = Field(default=None, repr=False)
    """File with its private key."""
    tls_identity: str | None = None
    """Which names of a certificate say who its owner is: some of uri, dns, cn, in order."""

    audit: Literal["auto", "required", "off"] = "auto"
    """Whether changes by operators are written down in the log `_audit`: auto makes those that
    cannot be written down all the same, and says so; required refuses them."""
    key_file: str | None = Field(default=None, repr=False)
    """File with the wrapping keys of encrypted logs."""
    key_command: str | None = Field(default=None, repr=False)
    """Command that wraps and unwraps the data keys of encrypted logs."""

    object_cache: Bytes = Field(default=0, ge=0)
    """How much of archived segments is kept on the disk of this machine, as "2G"; 0: nothing."""

    @property
    def secured(self) -> TlsSettings:
        """How connections are secured. Raises `InvalidTls`."""
        return tls_settings(self.tls, self.tls_ca, self.tls_cert, self.tls_key, self.tls_identity)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - we read no .env
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - nor secrets files
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = _file()
        if path is None:
            return init_settings, env_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=path)


def read_settings(given: Mapping[str, str] | None = None) -> ProcessSettings:
    """Return the settings of this process; *given* ones, by their names, come before all others.
    They are read again only where the environment, the file or *given* changed.
    Raises `InvalidConfig`."""
    environment = {name: text for name, text in os.environ.items() if name.startswith(ENV_PREFIX)}
    path = _file()
    version: tuple[int, ...] = ()
    if path is not None:
        with suppress(OSError):  # reading it says what is wrong
            found = path.stat()
            version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return _read_settings(
        tuple(sorted(environment.items())), path, version, tuple(sorted((given or {}).items()))
    )


@lru_cache(maxsize=_READINGS_MAX)
def _read_settings(
    environment: tuple[tuple[str, str], ...],
    path: Path | None,
    version: tuple[int, ...],  # noqa: ARG001 - of the file: another one is read
    given: tuple[tuple[str, str], ...],
) -> ProcessSettings:
    _check_names(name for name, _ in environment)
    try:
        return ProcessSettings(**cast("Mapping[str, Any]", dict(given)))
    except ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
        )
        where = f"the environment ({ENV_PREFIX}*) or {path or 'the arguments'}"
        raise InvalidConfig(where, reasons) from error
    except (SettingsError, ValueError, OSError) as error:
        raise InvalidConfig(str(path), str(error)) from error


def _file() -> Path | None:
    """Return the TOML file, None if there is none. Where it is by default nobody has put one if
    there is no home directory, or if it is somebody else's, into which this user may not look:
    containers and sudo leave such a HOME. Raises `InvalidConfig`."""
    if "DLOG_CONFIG" in os.environ:
        path = config_path()
        try:
            if not path.is_file():
                raise InvalidConfig("DLOG_CONFIG", f"there is no file {path}")
        except PermissionError as error:
            raise InvalidConfig(str(path), str(error)) from error
        return path
    with suppress(InvalidConfig, PermissionError):
        path = config_path()
        return path if path.is_file() else None
    return None


def _check_names(names: Iterable[str]) -> None:
    """Refuse a variable that was misspelt; warn of others that mean nothing, once."""
    settings = [f"{ENV_PREFIX}{name.upper()}" for name in ProcessSettings.model_fields]
    known = {*settings, *_ENV_OTHERS}
    for name in sorted(names):
        if not name.startswith(ENV_PREFIX) or name.startswith(_ENV_TESTS) or name in known:
            continue
        near = difflib.get_close_matches(
            name.removeprefix(ENV_PREFIX),
            [each.removeprefix(ENV_PREFIX) for each in sorted(known)],
            n=1,
            cutoff=_NEAR_MISS,
        )
        if near and not _SERVICE_LINK.fullmatch(name):
            raise InvalidConfig(
                "the environment",
                f"{name} is unknown; did you mean {ENV_PREFIX}{near[0]}? "
                f"Known are {', '.join(sorted(settings))}",
            )
        if name not in _warned and len(_warned) < _WARNED_MAX:
            _warned.add(name)
            _log.warning("unknown_variable_ignored", variable=name)
