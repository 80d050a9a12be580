"""The bundle of ``dlog debug bundle``: what a report of trouble needs, gathered without secrets.

It is gathered in steps, each with a limit of its own; none needs another. Invariant: a step that
fails, or is too slow, is a line of MISSING.txt, and the others are done. The file that is made has
what was gathered within a bound, and says what could not be had.

Nobody knows all forms of secrets: what looks like one is taken out, so that too much goes rather
than too little. What is known to be a secret is taken out wherever it stands. Repetitions in the
patterns are bounded where they could begin anywhere, or a strange log would take hours.
"""

import asyncio
import gzip
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from bookie.autorecovery.status import underreplicated
from dlog.cli.connections import check_there, opened_store
from dlog.cli.health import report_of
from dlog.cli.ledger import MARKED
from dlog.config import InvalidConfig, load, resolve_uri
from dlog.health.store import StoreFacts
from dlog.installation import formats, other_dlog
from dlog.process_settings import ProcessSettings
from ledger.cluster import open_namespace
from ledger.errors import LogError
from ledger.membership import KnownBookie, attendance
from ledger.metastore.uri import without_secrets
from ledger.process import DISTRIBUTION, own_version
from ledger.security.certificates import Security
from ledger.tasks import for_each
from ledger.values import counted

REDACTED: Final = "[redacted]"
KNOWN_CHARACTERS_MIN: Final = 6
"""A shorter secret is not looked for: it would be found in words."""
_NAMES: Final = (
    r"pass(?:word|wd|phrase)?|pwd|secret|token|auth|authorization|credential|cookie|session"
    r"|(?<![a-z])mac"
    r"|signature|(?:api|private|access|data|wrapping|encryption|tls|account|shared)[-_. ]?key"
    r"|key[-_.]?(?:file|command)"
)
_NAME: Final = rf"(?:{_NAMES})s?"
_SECRET_NAME: Final = re.compile(rf"[\w. -]*{_NAME}|(?:.*[-_.])?key", re.IGNORECASE)
_VALUE: Final = (
    r'"(?:[^"\\\n]|\\.)*(?:"|$)' r"|'(?:[^'\\\n]|\\.)*(?:'|$)" r"|b?[^\s,;&\"'\]})]+[^\s,;&\]})]*"
)
_ASSIGNED: Final = re.compile(
    rf"(?P<name>{_NAME}[\"']?\s*(?:=>|[=:])\s*)(?:(?:bearer|basic|digest)[ :]\s*)?"
    rf"(?:{_VALUE})",
    re.IGNORECASE | re.MULTILINE,
)
_OPTION: Final = re.compile(
    rf"(?P<name>(?<![\w-])--?[\w.-]{{0,64}}?{_NAME}[= ]+)(?:{_VALUE})", re.IGNORECASE | re.MULTILINE
)
_HEADER: Final = re.compile(
    r"(?P<name>\b(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{0,64}(?:key|token))[\"']?\s*[:=]).*",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(r"(?P<name>\b(?:bearer|basic|digest)[ :]+)[^\s,;\"']+", re.IGNORECASE)
_URI: Final = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,20}://)(?P<rest>[^\s\"'<>]*)", re.IGNORECASE
)
_PEM: Final = re.compile(
    r"(?P<begin>-----BEGIN [A-Z0-9 ]*-----)(?:.*?)(?P<end>-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL
)
_PEM_END: Final = re.compile(r"\A(?:(?!-----BEGIN).)*?(?=-----END [A-Z0-9 ]*-----)", re.DOTALL)
_OPAQUE: Final = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{24,}={0,2}")
BYTES_MAX: Final = 64 << 20
"""Of everything in it, before it is packed."""
_MODE: Final = 0o600
STEP_S_MAX: Final = 90.0
"""A step that takes longer is given up; each check of the cluster has 60 s itself."""
PAGE_S_MAX: Final = 5.0
PAGE_BYTES_MAX: Final = 4 << 20
PAGES: Final = ("metrics", "healthz", "readyz")
LOG_BYTES_MAX: Final = 1 << 20
"""Of the end of each log."""
MARGIN_BYTES: Final = 64 << 10
"""Of a log before that, read so that what is cut in half there is seen as a whole."""
MARKS_MAX: Final = 1_000
ASKS_MAX: Final = 16
_GRACE_S: Final = 2.0
_SECRET_VARIABLE: Final = re.compile(r"pass|secret|token|key|auth|credential", re.IGNORECASE)


class Redactor:
    """Knows the secrets of this process, and the looks of others'."""

    def __init__(self, known: Iterable[str]) -> None:
        found = sorted(
            {each for each in known if len(each) >= KNOWN_CHARACTERS_MIN}, key=len, reverse=True
        )
        self._known = re.compile("|".join(map(re.escape, found))) if found else None

    def text(self, text: str, *, opaque: bool = False) -> str:
        """Return *text* without what is, or looks like, a secret; with *opaque* also without long
        strings that say nothing to a person: keys, digests, ids."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        text = _PEM_END.sub(f"{REDACTED}\n", text, count=1) if "-----END " in text else text
        text = _PEM.sub(rf"\g<begin>{REDACTED}\g<end>", text)
        text = _HEADER.sub(rf"\g<name> {REDACTED}", text)
        text = _URI.sub(_without_secrets, text)
        for pattern in (_ASSIGNED, _OPTION, _BEARER):
            text = pattern.sub(rf"\g<name>{REDACTED}", text)
        return _OPAQUE.sub(_unless_plain, text) if opaque else text

    def value(self, value: object) -> object:
        """Return the JSON *value* with `text` for its strings, and nothing of what is named as a
        secret is."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {
                    self.text(str(name)): REDACTED
                    if isinstance(each, str) and each and _SECRET_NAME.fullmatch(str(name))
                    else self.value(each)
                    for name, each in value.items()
                }
            case list() | tuple():
                return [self.value(each) for each in value]
            case _:
                return value


def _without_secrets(found: "re.Match[str]") -> str:
    """Return a URI without its options and without what stands before its host. A password may
    hold slashes that should have been written otherwise."""
    place = re.split("[?#]", found["rest"], maxsplit=1)
    _, at, host = place[0].rpartition("@")
    shown = f"{REDACTED}@{host}" if at else host
    return f"{found['scheme']}{shown}{f'?{REDACTED}' if len(place) > 1 else ''}"


def _unless_plain(found: "re.Match[str]") -> str:
    """Return what was found if it is words or a number; else it is taken out."""
    text = found[0]
    words = re.split("[/_-]", text)
    if all(word.isdigit() or (word.isalpha() and len(word) < 24) for word in words if word):
        return text
    if "/" in text and all(len(word) < 24 for word in words):  # most likely a path
        digits = sum(character.isdigit() for character in text)
        if digits * 4 < len(text):
            return text
    return REDACTED


@dataclass(slots=True)
class Bundle:
    """Everything comes in through the redactor."""

    redactor: Redactor
    files: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Parts that could not be collected, and why."""
    left_bytes: int = BYTES_MAX

    def add_text(self, name: str, text: str, *, opaque: bool = False) -> None:
        """Take *text*, or say that there is no room for it."""
        self._add(name, self.redactor.text(text, opaque=opaque))

    def add_json(self, name: str, value: object) -> None:
        self._add(name, f"{json.dumps(self.redactor.value(value), indent=2, default=str)}\n")

    def miss(self, what: str, why: str) -> None:
        """Say why *what* is not there."""
        self.missing[self.redactor.text(what)] = self.redactor.text(why)

    def _add(self, name: str, text: str) -> None:
        content = text.encode(errors="replace")
        if len(content) > self.left_bytes:
            why = f"too large: {counted(len(content), 'byte')}, and {self.left_bytes} were left"
            self.miss(name, f"{why} of the {BYTES_MAX} that a bundle holds")
            return
        self.left_bytes -= len(content)
        self.files[name] = content

    def write(self, path: Path) -> int:
        """Write the bundle to *path*, which must not exist; return its size in bytes."""
        said = "".join(f"{what}: {' '.join(why.split())}\n" for what, why in self.missing.items())
        files = {
            "MANIFEST.json": self._manifest(),
            "MISSING.txt": (said or "nothing: everything was collected\n").encode(errors="replace"),
            **self.files,
        }
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        try:
            with (
                os.fdopen(made, "wb") as file,
                gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                for name, content in files.items():
                    entry = tarfile.TarInfo(f"dlog-debug/{name}")
                    entry.size, entry.mode, entry.mtime = len(content), _MODE, int(time.time())
                    tar.addfile(entry, io.BytesIO(content))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path.stat().st_size

    def _manifest(self) -> bytes:
        facts = {
            "format": 1,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "files": {name: len(content) for name, content in self.files.items()},
            "missing": len(self.missing),
        }
        return f"{json.dumps(facts, indent=2)}\n".encode()


@dataclass(frozen=True, slots=True)
class BundleRequest:
    uri: str | None = field(repr=False)
    metrics: Sequence[str]
    """Addresses, as host:port or as a URL."""
    log_files: Sequence[Path]


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    gather: Callable[[Bundle, BundleRequest], Awaitable[None]]


async def gather(bundle: Bundle, wanted: BundleRequest, report: Callable[[str], None]) -> None:
    """Do all steps at once; call *report* with what has been done."""

    async def do(step: Step) -> None:
        if (why := await _tried(step, bundle, wanted)) is not None:
            bundle.miss(step.name, why)
        report(f"{step.name}: {'gathered' if why is None else bundle.redactor.text(why)}")

    await asyncio.gather(*map(do, STEPS))


async def _tried(step: Step, bundle: Bundle, wanted: BundleRequest) -> str | None:
    """Return why the step came to nothing; None: it did not."""
    doing = asyncio.ensure_future(step.gather(bundle, wanted))
    try:
        await asyncio.wait({doing}, timeout=STEP_S_MAX)
        if doing.done():
            doing.result()
            return None
    except (LogError, OSError) as error:
        return str(error) or type(error).__name__
    except Exception as error:  # noqa: BLE001 - a bug of ours must not take the rest with it
        return f"internal error: {error!r}"
    finally:
        doing.cancel()
        await asyncio.wait({doing}, timeout=_GRACE_S)
    return f"too slow: it took longer than {STEP_S_MAX:g} s"


def secrets_known(uri: str | None) -> Iterator[str]:
    """Yield what is known to be secret here: passwords in URIs, and variables named as secrets."""
    for name, value in os.environ.items():
        if _SECRET_VARIABLE.search(name):
            yield value
    configured = os.environ.get("DLOG_URI")
    with suppress(InvalidConfig):
        configured = load().uri
    for each in (uri, configured):
        if each is None:
            continue
        with suppress(ValueError):
            parts = urlsplit(each)
            yield from filter(None, (parts.password, unquote(parts.password or "")))
            for name, value in parse_qsl(parts.query):
                if name == "auth":
                    yield value
                    yield value.rpartition(":")[2]


async def _versions(bundle: Bundle, _: BundleRequest) -> None:
    bundle.add_json(
        "versions.json",
        {
            DISTRIBUTION: own_version(),
            "formats": formats(),
            "python": sys.version,
            "system": " ".join(os.uname()[:1] + os.uname()[2:]),
            "libc": " ".join(platform.libc_ver()),
            "cores": os.cpu_count(),
            "stranger": other_dlog(),
            "libraries": dict(_libraries()),
        },
    )


def _libraries() -> Iterator[tuple[str, str]]:
    for requirement in requires(DISTRIBUTION) or ():
        found = re.match(r"[\w.-]+", requirement)
        if found is not None:
            with suppress(PackageNotFoundError):
                yield found[0], version(found[0])


async def _settings(bundle: Bundle, wanted: BundleRequest) -> None:
    settings = load()
    facts: dict[str, object] = {}
    for name, declared in ProcessSettings.model_fields.items():
        value = getattr(settings, name)
        facts[name] = value if declared.repr or value is None else REDACTED
    facts["uri"] = without_secrets(resolve_uri(wanted.uri))
    facts["variables"] = sorted(name for name in os.environ if name.startswith("DLOG_"))
    bundle.add_json("settings.json", facts)


def _examined(name: str, *, deep: bool) -> Step:
    async def examined(bundle: Bundle, wanted: BundleRequest) -> None:
        check_there(wanted.uri)
        report = await report_of(wanted.uri, deep=deep)
        bundle.add_json(name, report.to_dict())
        for one in report.checked:
            trouble = one.facts.trouble if isinstance(one.facts, StoreFacts) else one.trouble
            if trouble:
                bundle.miss(f"{name}, {one.name}", trouble)
        for words in report.unseen:
            bundle.miss(f"{name}, {words}", "it is too large")

    return Step(name, examined)


async def _metadata(bundle: Bundle, wanted: BundleRequest) -> None:
    check_there(wanted.uri)
    async with opened_store(wanted.uri) as store:
        namespace = await open_namespace(store)
        there = await attendance(store)
        marks = await underreplicated(store)
    for bookie in there.bookies:
        if bookie.is_missed:
            bundle.miss(f"bookie {bookie.bookie}", bookie.damaged or "it is unavailable")
    if len(marks) > MARKS_MAX:
        bundle.miss(
            f"metadata.json, {counted(len(marks) - MARKS_MAX, 'mark')} of ledgers",
            "there are too many",
        )
    bundle.add_json(
        "metadata.json",
        {
            "instance": namespace.instance,
            "layout": namespace.layout,
            "level": namespace.held.level,
            "raising_to": namespace.held.raising_to,
            "bookies": [_shown(each) for each in there.bookies],
            "bookies_left_out": there.left_out,
            "underreplicated": len(marks),
            "marks": MARKED.rows(marks[:MARKS_MAX]),
        },
    )


def _shown(known: KnownBookie) -> Mapping[str, object]:
    found = known.registration
    return {
        "bookie": known.bookie,
        "address": known.address,
        "operator_address": "" if found is None else found.operator_address,
        "registered": found is not None,
        "start": "" if found is None else found.incarnation,
        "reads_level": None if found is None else found.level,
        "rack": "" if found is None else found.rack,
        "read_only": found is not None and found.read_only,
        "read_only_reason": "" if found is None else found.read_only_reason,
        "leaving": known.leaving,
        "retired": known.retired,
        "limbo": known.limbo,
        "damaged": known.damaged,
    }


async def _pages(bundle: Bundle, wanted: BundleRequest) -> None:
    if not wanted.metrics:
        bundle.miss("metrics", "no process was named; name each by --metrics HOST:PORT")
        return
    security = await Security.settled(load().secured)

    async def fetch(address: str) -> None:
        for page in PAGES:
            name = f"{page}/{_file_name(address)}.txt"
            try:
                async with asyncio.timeout(PAGE_S_MAX):
                    bundle.add_text(name, await _page(address, page, security))
            except TimeoutError:
                bundle.miss(name, f"too slow: it took longer than {PAGE_S_MAX:g} s")
            except (OSError, ValueError, LogError) as error:
                bundle.miss(name, str(error) or type(error).__name__)

    await for_each(wanted.metrics, fetch, at_once=ASKS_MAX)


async def _page(address: str, page: str, security: Security | None) -> str:
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.hostname is None or parts.port is None or parts.scheme not in ("http", "https"):
        raise ValueError("it is not HOST:PORT, nor http://HOST:PORT")
    secured = parts.scheme == "https" or ("://" not in address and security is not None)
    if secured and security is None:
        raise ValueError("it requires TLS, and this process has no certificate: set DLOG_TLS")
    context = security.client() if secured and security is not None else None
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port, ssl=context, limit=PAGE_BYTES_MAX
    )
    try:
        writer.write(f"GET /{page} HTTP/1.0\r\nHost: {parts.hostname}\r\n\r\n".encode("ascii"))
        answer = b""
        while more := await reader.read(1 << 16):
            answer += more
            if len(answer) > PAGE_BYTES_MAX:
                raise ValueError(f"too large: it is more than {PAGE_BYTES_MAX} bytes")
    finally:
        writer.transport.abort()
    head, _, body = answer.partition(b"\r\n\r\n")
    return f"{head.splitlines()[0].decode(errors='replace')}\n{body.decode(errors='replace')}"


async def _logs(bundle: Bundle, wanted: BundleRequest) -> None:
    for number, path in enumerate(wanted.log_files, 1):
        name = f"logs/{number:02}-{_file_name(path.name)}"
        try:
            text = await asyncio.to_thread(_end_of, path)
        except OSError as error:
            bundle.miss(name, f"{path}: {error.strerror or error}")
            continue
        redacted = bundle.redactor.text(text, opaque=True)
        kept = redacted[-LOG_BYTES_MAX:]
        if len(kept) < len(redacted):
            kept = kept.partition("\n")[2]
        if kept:
            bundle.add_text(name, kept)
        else:
            bundle.miss(name, f"no whole line in the last {LOG_BYTES_MAX} bytes of {path}")


def _end_of(path: Path) -> str:
    """Return the whole lines of the last bytes: what is cut in half may be half a secret."""
    if not path.is_file():
        raise OSError(0, "it is not a file")
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        begin = max(0, end - LOG_BYTES_MAX - MARGIN_BYTES)
        file.seek(begin)
        content = file.read(LOG_BYTES_MAX + MARGIN_BYTES)
    if begin:
        content = content.partition(b"\n")[2]
    whole, newline, _ = content.rpartition(b"\n")
    return (whole + newline).decode(errors="replace")


def _file_name(text: str) -> str:
    """Return a name for a file, of the printable rest of *text*."""
    _, at, after = text.rpartition("@")
    kept = re.sub(r"[^\w.-]+", "_", after if at else text).strip("._")
    return "".join(islice(kept, 100)) or "unnamed"


STEPS: Final = (
    Step("versions.json", _versions),
    Step("settings.json", _settings),
    _examined("status.json", deep=False),
    _examined("doctor.json", deep=True),
    Step("metadata.json", _metadata),
    Step("metrics", _pages),
    Step("logs", _logs),
)
