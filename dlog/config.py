"""Settings of a process: which namespace it works on, and how long it waits for it.

A setting comes from the call's argument, else from the environment (``DLOG_URI``), else from
the TOML file that ``DLOG_CONFIG`` names (``~/.dlog/config.toml`` unless set, and then it need
not exist), else from its default. `dlog.process_settings` has them all; it is imported when they
are needed, as its library takes long to import.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledger.errors import CallerError, NoNamespace
from ledger.metastore.uri import parse_uri

if TYPE_CHECKING:
    from dlog.process_settings import ProcessSettings

ENV_PREFIX: Final = "DLOG_"


class InvalidConfig(CallerError):
    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"configuration in {where}: {reason}; correct it or take it out")
        self.where, self.reason = where, reason


def load(given: Mapping[str, str] | None = None) -> "ProcessSettings":
    """Return the settings of this process; *given* ones, by their names, come before all others.
    Raises `InvalidConfig`."""
    from dlog.process_settings import read_settings

    return read_settings(given)


def resolve_uri(uri: str | None = None) -> str:
    """Return the namespace to work on: *uri* if given, else the configured, else the local one.

    Raises `InvalidUri` for a scheme that does not exist, and `InvalidConfig`."""
    found = uri if uri is not None else load().uri
    return default_uri() if found is None else check_uri(found)


def check_uri(uri: str) -> str:
    """Return *uri* if a metadata store can be opened by it, else raise `InvalidUri`."""
    parse_uri(uri)
    return uri


def default_directory() -> Path:
    """Return where ``dlog up`` keeps the local cluster by default."""
    return home() / ".dlog" / "local"


def metadata_uri(directory: Path) -> str:
    """Return the URI of the embedded metadata store of a local cluster in *directory*."""
    return (directory.expanduser().absolute() / "metadata").as_uri()


def default_uri() -> str:
    """Return the namespace of the local cluster in its default place."""
    return metadata_uri(default_directory())


@contextmanager
def local_cluster_named(uri: str) -> Iterator[None]:
    """Let the error that there is no namespace at *uri* say how the local cluster is started, if
    *uri* is its default place."""
    try:
        yield
    except NoNamespace:
        if uri == default_uri():
            raise NoNamespace(uri, local=True) from None
        raise


def config_path() -> Path:
    """Return the path of the TOML file, which may not exist. Raises `InvalidConfig`."""
    named = os.environ.get("DLOG_CONFIG")
    return Path(named).expanduser() if named else home() / ".dlog" / "config.toml"


def home() -> Path:
    """Return the home directory of this user. Raises `InvalidConfig` if there is none."""
    try:
        return Path.home()
    except RuntimeError as error:
        raise InvalidConfig(
            "HOME",
            "this user has no home directory, where the configuration and the local "
            "cluster are by default: set HOME, or DLOG_CONFIG and DLOG_URI",
        ) from error
