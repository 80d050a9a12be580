"""The log `_audit`: records changes by operators, and reads them.

A log has one writer, and operators are many: each opens the log when a change begins, and has it
until the change ends or another operator opens it; then it is opened once more for the outcome. So
no operator waits for another one, and a takeover costs tens of milliseconds, which is not felt at a
shell. The attempts are bounded in number and time.

Operators must be able to act when bookies are missing: so a change that cannot be recorded is made
anyway, with a warning, unless *required* is set.
"""

import asyncio
import getpass
import secrets
import socket
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from dlog.aio.admin import update_settings
from dlog.aio.log import Log
from dlog.aio.maintain.lifecycle import ensure_log
from dlog.aio.store import ManifestNode
from dlog.changes.change import LOG, Argument, Change, ChangeOutcome, joined
from dlog.config import load
from dlog.errors import AppendOutcomeUnknown, LogClosed, LostOwnership, NoSuchLog
from dlog.position import Start, Timestamp
from dlog.settings import LogSettings
from ledger.delays import Backoff
from ledger.errors import LogError, NotEnoughBookies, RemoteError
from ledger.log_events import now_ms
from ledger.process import this_process
from ledger.quorum import Quorum
from ledger.security.certificates import Security, own_name

if TYPE_CHECKING:
    from ledger.client import LedgerClient

CHANGES_MAX: Final = 10_000
"""Of one answer; they are in memory at once."""
TRIES_MAX: Final = 20
WRITE_S_MAX: Final = 5.0
"""Time limit for writing the beginning of a change, and for its outcome, if bookies hang."""
BACKOFF_S: Final = 0.02
BACKOFF_S_MAX: Final = 0.5
CLOSE_S: Final = 1.0
SEGMENTS_MAX: Final = 4000
"""Older ones go with the next change: each begins a segment, and a manifest has room for so many
and some more."""
RETENTION_MS: Final = 400 * 86_400_000
"""A year and a month: what was done at this time of the last year can be looked up."""
COPIES: Final = 3
ERROR_MAX: Final = 1000
Warn = Callable[[str], None]


async def last_changes(
    client: "LedgerClient", *, since_ms: int | None = None, changes_max: int = CHANGES_MAX
) -> list[Change]:
    """Return the last changes, each once, in the order in which they began.

    With *since_ms*, those that were recorded at that time or later. Raises what
    reading a log raises."""
    assert 1 <= changes_max <= CHANGES_MAX
    found: list[Change] = []
    async for record in _records(client, since_ms=since_ms, follow=False):
        found.append(record)
        if len(found) > 2 * changes_max:
            found = joined(found, changes_max=changes_max)
    return joined(found, changes_max=changes_max)


async def follow_changes(
    client: "LedgerClient", *, since_ms: int | None = None
) -> AsyncIterator[Change]:
    """Yield changes as they are recorded: each when it begins, and when it ends.

    Raises `NoSuchLog` if no change was ever recorded."""
    async for record in _records(client, since_ms=since_ms, follow=True):
        yield record


async def _records(
    client: "LedgerClient", *, since_ms: int | None, follow: bool
) -> AsyncIterator[Change]:
    start: Start = "start" if since_ms is None else Timestamp(since_ms)
    try:
        reader = await Log.tail(LOG, start=start, follow=follow, client=client)
    except NoSuchLog:
        if follow:
            raise
        return
    try:
        while batch := await reader.read_batch():
            for record in batch:
                if (change := Change.decode(bytes(record.value))) is not None:
                    yield change
    finally:
        await reader.close()


class Mode(StrEnum):
    AUTO = "auto"
    """Recorded if that is possible; the change is made in any case."""
    REQUIRED = "required"
    """No change that cannot be recorded."""
    OFF = "off"


class ChangeNotRecorded(RemoteError):
    retryable = True

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(
            f"{command} was not started: it cannot be recorded in the log {LOG!r}: {reason}; "
            f"DLOG_AUDIT={Mode.AUTO} makes the change without a record"
        )
        self.command, self.reason = command, reason


def ourselves() -> str:
    """Return the user of this process: by its certificate if there is one, else USER@HOST.

    Raises `InvalidConfig`, `InvalidTls`."""
    if name := own_name(Security.of(load().secured)):
        return name
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a number without a name, as in containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


@asynccontextmanager
async def recorded(
    client: "LedgerClient",
    command: str,
    arguments: Mapping[str, Argument],
    *,
    who: str,
    place: str | None = None,
    mode: Mode = Mode.AUTO,
    warn: Warn,
) -> AsyncIterator[None]:
    """Record that *command* begins, and the outcome with which it ends: an exception is a failure.

    *arguments* must hold no secrets. *place* is host and process unless given. Failures
    to record go to *warn* as a sentence. Raises `ChangeNotRecorded` before the body runs (*mode*
    required), and the errors of the body."""
    if mode is Mode.OFF:
        yield
        return
    begun = Change(
        number=secrets.token_hex(8),
        who=who,
        place=this_process() if place is None else place,
        command=command,
        arguments=arguments,
        begun_ms=now_ms(),
    )
    recorder = _Recorder(client)
    if (reason := await recorder.write(begun)) is not None and mode is Mode.REQUIRED:
        await recorder.close()
        raise ChangeNotRecorded(command, reason)
    ended = begun.ended(ChangeOutcome.INTERRUPTED, begun.begun_ms)
    try:
        yield
        ended = begun.ended(ChangeOutcome.DONE, now_ms())
    except Exception as error:
        ended = begun.ended(ChangeOutcome.FAILED, now_ms(), _sentence(error))
        raise
    finally:  # also if it is cancelled
        if ended.outcome is ChangeOutcome.INTERRUPTED:
            ended = begun.ended(ChangeOutcome.INTERRUPTED, now_ms())
        if (reason := await recorder.write(ended)) is not None:
            warn(f"the outcome of {command!r} was not recorded in the log {LOG!r}: {reason}")
        await recorder.close()


@dataclass(slots=True)
class _Recorder:
    """A writer of the log that gives way to others."""

    client: "LedgerClient"
    _log: Log | None = field(default=None)

    async def write(self, change: Change) -> str | None:
        """Return why *change* could not be recorded; None: it is."""
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                await self._write(change)
        except TimeoutError:
            return f"it took longer than {WRITE_S_MAX:g} s"
        except LogError as error:
            return str(error)
        return None

    async def _write(self, change: Change) -> None:
        backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                if self._log is None:
                    self._log = await _opened(self.client)
                # A record that may be there is written again: readers know it by its number.
                await self._log.append(change.encode(), key=change.number.encode())
                return
            except (LostOwnership, AppendOutcomeUnknown, LogClosed) as error:
                transient: LogError = error  # another operator came in between
            except NotEnoughBookies:
                raise  # it may be so for hours
            except LogError as error:
                if not error.retryable:
                    raise
                transient = error
            await self._abandon()
            if not tries_left:
                raise transient
            await asyncio.sleep(backoff.next())

    async def close(self) -> None:
        if self._log is not None:
            with suppress(LogError):  # what is in it is kept; who opens it next recovers it
                await self._log.close(timeout_s=CLOSE_S)
            self._log = None

    async def _abandon(self) -> None:
        if self._log is not None:
            await self._log.abandon()
            self._log = None


async def _opened(client: "LedgerClient") -> Log:
    """Open the log; create it if needed, with as many copies as there are bookies, up to three, and
    give it more once there are more."""
    node = ManifestNode(client.store, LOG)
    quorum = _quorum(len(client.bookies.writable()))
    await ensure_log(client, node, LogSettings(quorum=quorum), own=True)
    manifest, _ = await node.read()
    if manifest.settings.quorum.ensemble < quorum.ensemble:
        wanted = {
            "ensemble": quorum.ensemble,
            "write_quorum": quorum.write,
            "ack_quorum": quorum.ack,
        }
        await update_settings(LOG, wanted, client=client)
    log = await Log.open(LOG, client=client, create=False, reopen_timeout_s=0.0)
    kept = first_kept([segment.created_ms for segment in manifest.segments], now_ms())
    if kept:
        with suppress(LogError):  # the next change tries again
            await log.truncate(before=manifest.segments[kept].first_offset)
    return log


def first_kept(begun_ms: Sequence[int], at_ms: int) -> int:
    """Return the index of the first segment that is kept, by when each was begun. A segment is as
    old as the one after it is."""
    last = max(len(begun_ms) - 1, 0)
    old = bisect_right(begun_ms, at_ms - RETENTION_MS, 1) - 1 if begun_ms else 0
    return min(max(old, len(begun_ms) - SEGMENTS_MAX, 0), last)


def _quorum(bookies: int) -> Quorum:
    copies = max(1, min(bookies, COPIES))
    return Quorum(copies, copies, copies // 2 + 1)


def _sentence(error: Exception) -> str:
    """Return why *error* ended a command. The reason of an exit code is in its notes."""
    return ("; ".join(getattr(error, "__notes__", ())) or str(error) or repr(error))[:ERROR_MAX]
