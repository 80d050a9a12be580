"""The URI of a namespace, parsed.

file:///directory                                   embedded store of one machine
zk://host:2181,host:2181/root?auth=digest:user:password&ca=/f.pem&cert=/f.pem&key=/f.pem
zk://host:2181/root?auth-file=/f&tls=off            the same from a file with digest:user:password
memory://name                                       inside one process, for tests
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ledger.errors import InvalidPath, InvalidUri
from ledger.metastore.ops import check_path
from ledger.security.settings import TlsMode, TlsSettings

URI_VARIABLE: Final = "DLOG_URI"
"""Of the environment. Programs name the namespace to those that they start by it: all users of a
machine see command lines, and a URI may have a password."""
_ZOOKEEPER_PORT: Final = 2181
_ZOOKEEPER_OPTIONS: Final = ("auth", "auth-file", "ca", "cert", "key", "tls")
_AUTH_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class FileUri:
    directory: Path


@dataclass(frozen=True, slots=True)
class MemoryUri:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperUri:
    hosts: str
    """host:port, separated by commas."""
    root: str
    """Path that the namespace lives under; empty for the whole server."""
    user: str = ""
    password: str = field(default="", repr=False)
    """With a user: digest authentication; of a new namespace, only this user may touch it."""
    ca_file: str = ""
    """With it, TLS; the server's certificate must be signed by it."""
    cert_file: str = ""
    key_file: str = ""
    tls: bool | None = None
    """Whether the URI asks for TLS; None: it says nothing of it."""
    ids: tuple[str, ...] = ()
    """Who besides may touch a namespace that is made; see `ledger.metastore.acl`."""


StoreUri = FileUri | MemoryUri | ZooKeeperUri


def parse_uri(uri: str) -> StoreUri:
    """Return what *uri* says. Raises `InvalidUri`."""
    if not isinstance(uri, str):
        raise InvalidUri(uri, "it is not a string")
    shown = without_secrets(uri)
    try:
        parts = _zookeeper_parts(uri) if uri.startswith("zk://") else urlsplit(uri)
    except ValueError as error:
        raise InvalidUri(shown, str(error)) from error
    if parts.fragment:
        raise InvalidUri(shown, "a fragment (#) has no meaning here; write # in a password as %23")
    if parts.scheme != "zk" and parts.query:
        raise InvalidUri(shown, f"{parts.scheme}:// takes no options after '?'")
    match parts.scheme:
        case "file":
            return _parse_file(shown, parts.netloc, unquote(parts.path))
        case "memory":
            if not parts.netloc or parts.path not in ("", "/"):
                raise InvalidUri(shown, "a name, and nothing else, must follow memory://")
            return MemoryUri(parts.netloc)
        case "zk":
            return _parse_zookeeper(shown, parts.netloc, parts.path, parts.query)
        case "":
            raise InvalidUri(shown, "it has no scheme")
        case unknown:
            raise InvalidUri(shown, f"the scheme {unknown!r} is not known")


def without_secrets(uri: str) -> str:
    """Return *uri* as it may be shown: without what can hold a password, which are its options,
    and what stands before the hosts where other programs have it."""
    place = re.split("[?#]", uri, maxsplit=1)[0]
    scheme, slashes, rest = place.rpartition("://")
    before, at, hosts = rest.rpartition("@")
    if at and "/" not in before:
        rest = f"...@{hosts}"
    return f"{scheme}{slashes}{rest}"


def places_of(uri: str) -> tuple[str, ...]:
    """Return what tells the store at *uri* from a copy of it elsewhere, sorted: its servers with
    the root, or its directory, which is another one wherever it is copied to.

    A store may be reached by other names as well. Raises `InvalidUri`, `OSError`."""
    match parse_uri(uri):
        case FileUri(directory):
            return (f"directory {directory.stat().st_ino}",)
        case MemoryUri(name):
            return (f"memory {name}",)
        case ZooKeeperUri(hosts=hosts, root=root):
            return tuple(sorted(f"{host}{root}" for host in hosts.split(",")))


def secured(parsed: ZooKeeperUri, tls: TlsSettings) -> ZooKeeperUri:
    """Return *parsed* with the files of *tls* if that is required, or if the URI asks for TLS and
    names no files."""
    if parsed.ca_file or parsed.tls is False:
        return parsed
    if tls.mode is not TlsMode.REQUIRED and not (parsed.tls and tls.ca):
        if parsed.tls:
            raise InvalidUri("zk://...", "tls=required needs ca, cert and key, or DLOG_TLS_CA ...")
        return parsed
    return replace(parsed, ca_file=tls.ca, cert_file=tls.cert, key_file=tls.key)


def _zookeeper_parts(uri: str) -> SplitResult:
    """Split by hand: some versions of Python refuse brackets beside several hosts."""
    rest, _, fragment = uri.removeprefix("zk://").partition("#")
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    return SplitResult("zk", netloc, slash + path, query, fragment)


def _parse_file(uri: str, host: str, path: str) -> FileUri:
    if host or not path.startswith("/"):
        raise InvalidUri(uri, "three slashes and an absolute directory must follow file:")
    if "\0" in path:
        raise InvalidUri(uri, "the directory holds a zero byte")
    return FileUri(Path(path))


def _parse_zookeeper(shown: str, netloc: str, path: str, query: str) -> ZooKeeperUri:
    if "@" in netloc:
        raise InvalidUri(shown, "give credentials as ?auth=digest:user:password")
    hosts = ",".join(_host_port(shown, item) for item in netloc.split(","))
    root = unquote(path).rstrip("/")
    try:
        check_path(root or "/")
    except InvalidPath as error:
        raise InvalidUri(shown, f"root {root!r}: {error.reason}") from error
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _ZOOKEEPER_OPTIONS:
            known = ", ".join(_ZOOKEEPER_OPTIONS)
            # It may be the end of a password with an & in it, or credentials without a name.
            what = repr(name) if name.isalpha() and "auth" not in options else "that follows"
            raise InvalidUri(
                shown, f"an option {what} is not known (known: {known}; & in a password is %26)"
            )
    user = password = ""
    if "auth" in options and "auth-file" in options:
        raise InvalidUri(shown, "give one of auth and auth-file")
    if "auth-file" in options:
        options["auth"] = _read_auth(shown, options["auth-file"])
    if "auth" in options:
        scheme, _, credential = options["auth"].partition(":")
        user, _, password = credential.partition(":")
        if scheme != "digest" or not user or not password:
            where = "what is in auth-file" if "auth-file" in options else "auth"
            raise InvalidUri(shown, f"{where} must be digest:user:password")
    if options.get("tls", "off") not in ("off", "required"):
        raise InvalidUri(shown, "tls is off or required")
    if options.get("tls") == "off" and "ca" in options:
        raise InvalidUri(shown, "tls is off, and ca is given")
    if ("cert" in options) != ("key" in options) or ("cert" in options and "ca" not in options):
        raise InvalidUri(shown, "TLS takes ca, or ca with both cert and key")
    return ZooKeeperUri(
        hosts=hosts,
        root=root,
        user=user,
        password=password,
        ca_file=options.get("ca", ""),
        cert_file=options.get("cert", ""),
        key_file=options.get("key", ""),
        tls=options["tls"] == "required" if "tls" in options else None,
    )


def _read_auth(shown: str, path: str) -> str:
    """Return the first line of *path*. A file keeps the password out of lists of processes."""
    try:
        with Path(path).open() as file:
            return file.readline(_AUTH_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidUri(shown, f"auth-file {path}: {reason}") from error


def _host_port(uri: str, item: str) -> str:
    try:
        parts = urlsplit(f"//{item}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidUri(uri, f"{item!r} is not host:port ({error})") from error
    if not host:
        raise InvalidUri(uri, "host:port is missing")
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{_ZOOKEEPER_PORT if port is None else port}"
