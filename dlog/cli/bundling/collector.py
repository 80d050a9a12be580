"""Gathers what goes into a bundle: steps, each with a limit of its own; none needs another.

Invariant: a step that fails, or is too slow, is a line of MISSING.txt, and the others are done.
"""

import asyncio
import os
import platform
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from bookie.autorecovery.status import underreplicated
from dlog.cli.bundling.archive import Bundle
from dlog.cli.bundling.redaction import REDACTED
from dlog.cli.connections import check_there, opened_store
from dlog.cli.health import report_of
from dlog.cli.ledger import mark_facts
from dlog.config import InvalidConfig, load, resolve_uri
from dlog.health.store import StoreFacts
from dlog.installation import formats, other_dlog
from dlog.process_settings import ProcessSettings
from ledger.cluster import open_namespace
from ledger.concurrently import for_each
from ledger.distribution import DISTRIBUTION, own_version
from ledger.errors import LogError
from ledger.membership import KnownBookie, attendance
from ledger.metastore.uri import without_secrets
from ledger.security.certificates import Security
from ledger.values import counted

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


@dataclass(frozen=True, slots=True)
class Wanted:
    uri: str | None = field(repr=False)
    metrics: Sequence[str]
    """Addresses, as host:port or as a URL."""
    log_files: Sequence[Path]


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    gather: Callable[[Bundle, Wanted], Awaitable[None]]


async def gather(bundle: Bundle, wanted: Wanted, report: Callable[[str], None]) -> None:
    """Do all steps at once; call *report* with what has been done."""

    async def do(step: Step) -> None:
        if (why := await _tried(step, bundle, wanted)) is not None:
            bundle.miss(step.name, why)
        report(f"{step.name}: {'gathered' if why is None else bundle.redactor.text(why)}")

    await asyncio.gather(*map(do, STEPS))


async def _tried(step: Step, bundle: Bundle, wanted: Wanted) -> str | None:
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


async def _versions(bundle: Bundle, _: Wanted) -> None:
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


async def _settings(bundle: Bundle, wanted: Wanted) -> None:
    settings = load()
    facts: dict[str, object] = {}
    for name, declared in ProcessSettings.model_fields.items():
        value = getattr(settings, name)
        facts[name] = value if declared.repr or value is None else REDACTED
    facts["uri"] = without_secrets(resolve_uri(wanted.uri))
    facts["variables"] = sorted(name for name in os.environ if name.startswith("DLOG_"))
    bundle.add_json("settings.json", facts)


def _examined(name: str, *, deep: bool) -> Step:
    async def examined(bundle: Bundle, wanted: Wanted) -> None:
        check_there(wanted.uri)
        report = await report_of(wanted.uri, deep=deep)
        bundle.add_json(name, report.shown())
        for one in report.checked:
            trouble = one.facts.trouble if isinstance(one.facts, StoreFacts) else one.trouble
            if trouble:
                bundle.miss(f"{name}, {one.name}", trouble)
        for words in report.unseen:
            bundle.miss(f"{name}, {words}", "there is too much of it")

    return Step(name, examined)


async def _metadata(bundle: Bundle, wanted: Wanted) -> None:
    check_there(wanted.uri)
    async with opened_store(wanted.uri) as store:
        namespace = await open_namespace(store)
        there = await attendance(store)
        marks = await underreplicated(store)
    for each in there.bookies:
        if each.is_missed:
            bundle.miss(f"bookie {each.bookie}", each.damaged or "it is not there to be asked")
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
            "marks": [mark_facts(each) for each in marks[:MARKS_MAX]],
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


async def _pages(bundle: Bundle, wanted: Wanted) -> None:
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
        raise ValueError("it has TLS, and this process has no certificate: set DLOG_TLS")
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


async def _logs(bundle: Bundle, wanted: Wanted) -> None:
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
