"""Which namespace a source or sink works on, and how its connections are secured.

What is not given is found by each process for itself, in its own environment: the driver's, an
executor's. No value of it is a secret, as Spark shows options in its UI, plans and event logs:
keys are given as paths of files, and a key that is given in their place is refused unseen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dlog.config import ENV_PREFIX, load, resolve_uri
from dlog.spark.errors import InvalidOption, as_written
from ledger.errors import InvalidTls
from ledger.metastore.uri import without_secrets
from ledger.security.settings import holds_pem

_SETTINGS: Final = {
    "tls": "tls",
    "tlsca": "tls_ca",
    "tlscert": "tls_cert",
    "tlskey": "tls_key",
    "tlsidentity": "tls_identity",
}
"""Options as Spark hands them over, and the settings of `dlog.config` that they stand for."""
OPTIONS: Final = ("uri", *_SETTINGS)
_NOT_SHOWN: Final = "..."


@dataclass(frozen=True, slots=True)
class Namespace:
    """Pickled to executors, compared where connections are shared."""

    uri: str
    given: tuple[tuple[str, str], ...] = ()
    """Settings of `dlog.config` that say how connections are secured, before any other source."""

    def __repr__(self) -> str:
        return f"Namespace({without_secrets(self.uri)!r})"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Namespace":
        """Return what *options*, under lower-case names, say; others are let be.

        Raises `InvalidOption`, `InvalidUri`, `InvalidConfig`."""
        given = tuple(
            (setting, options[option])
            for option, setting in _SETTINGS.items()
            if options.get(option)
        )
        refuse_contents(options)
        if given:
            try:
                _ = load(dict(given)).secured
            except InvalidTls as error:
                names = ", ".join(map(as_written, _SETTINGS))
                reason = f"{error.reason}; as options, these settings are {names}"
                raise InvalidOption("tls", options.get("tls", ""), reason) from error
        return cls(resolve_uri(options.get("uri")), given)


def refuse_contents(options: Mapping[str, str]) -> None:
    """Raise `InvalidOption` for contents of a file in place of its path, which are not shown."""
    for option in _SETTINGS:
        if holds_pem(options.get(option, "")):
            reason = "it is a key or a certificate; give the path of the file that holds it"
            raise InvalidOption(option, _NOT_SHOWN, reason)


def environment_of(namespace: Namespace) -> dict[str, str]:
    """Return what a process has in its environment to work on *namespace*, beside its parent's."""
    settings = {"uri": namespace.uri, **dict(namespace.given)}
    return {f"{ENV_PREFIX}{name.upper()}": value for name, value in settings.items()}
