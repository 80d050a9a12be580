"""Changes that were ordered from a page: each is made by a task of its own, and written down.

So a page never waits for a change, and who closes it stops nothing. Bounded: so many at once, and
so many that have ended are remembered.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlog.changes import ChangeOutcome, Mode, ourselves, recorded
from dlog.changes.change import Argument
from dlog.config import load
from ledger.client import LedgerClient
from ledger.errors import CallerError, LogError
from ledger.log_events import get_logger, now_ms

RUNNING_MAX: Final = 8
ENDED_MAX: Final = 100
"""That have ended and are remembered."""
SAID_MAX: Final = 2_000
"""Characters of what one says of itself."""

Say = Callable[[str, int | None], None]
"""Takes how far it is, in words and in thousandths; None: that is not known."""
_log = get_logger(__name__)


class NotBegun(CallerError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"the change was not started: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """One change, confirmed."""

    command: str
    """In the words of the command line, which makes the same change."""
    subject: str
    """The log or bookie."""
    arguments: Mapping[str, Argument]
    """As the command line calls them."""
    make: Callable[[Say], Awaitable[str]]
    """Make it; return a sentence that says what became of it."""


@dataclass(slots=True, kw_only=True)
class Work:
    number: str
    command: str
    subject: str
    arguments: Mapping[str, Argument]
    begun_ms: int
    outcome: ChangeOutcome = ChangeOutcome.BEGUN
    ended_ms: int | None = None
    said: str = ""
    """How far it is; once it has ended, what became of it."""
    permille: int | None = None
    warnings: list[str] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None

    @property
    def running(self) -> bool:
        return self.outcome is ChangeOutcome.BEGUN


class Works:
    """*news* is called whenever one of them is something new."""

    def __init__(self, client: LedgerClient, news: Callable[[], None]) -> None:
        self._client, self._news = client, news
        self._works: OrderedDict[str, Work] = OrderedDict()

    @property
    def newest(self) -> Sequence[Work]:
        return [*reversed(self._works.values())]

    def find(self, number: str) -> Work | None:
        return self._works.get(number)

    def begin(self, ordered: Ordered, *, place: str) -> Work:
        """Begin to make a change; *place* is from where it was ordered. Raises `NotBegun`."""
        running = [each for each in self._works.values() if each.running]
        if len(running) >= RUNNING_MAX:
            raise NotBegun(f"{RUNNING_MAX} other changes are under way; wait, or stop one")
        for each in running:
            if (each.command, each.subject) == (ordered.command, ordered.subject):
                raise NotBegun(f"{each.command} of {each.subject} is under way already")
        work = Work(
            number=secrets.token_hex(8),
            command=ordered.command,
            subject=ordered.subject,
            arguments=ordered.arguments,
            begun_ms=now_ms(),
        )
        self._works[work.number] = work
        ended = [each.number for each in self._works.values() if not each.running]
        for number in ended[: max(0, len(ended) - ENDED_MAX)]:
            del self._works[number]
        work.task = asyncio.create_task(self._make(work, ordered, place))
        work.task.add_done_callback(lambda _: self._end(work))
        return work

    def stop(self, number: str) -> None:
        """Stop to make a change, or to wait for it: what was begun elsewhere goes on there."""
        work = self._works.get(number)
        if work is not None and work.running and work.task is not None:
            work.task.cancel()

    async def close(self) -> None:
        """Stop all that are under way; that is written down."""
        for number in self._works:
            self.stop(number)
        tasks = [each.task for each in self._works.values() if each.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, work: Work, ordered: Ordered, place: str) -> None:
        def say(words: str, permille: int | None) -> None:
            work.said, work.permille = words[:SAID_MAX], permille
            self._news()

        try:
            async with recorded(
                self._client,
                ordered.command,
                ordered.arguments,
                who=ourselves(),
                place=place,
                mode=Mode(load().audit),
                warn=work.warnings.append,
            ):
                said = await ordered.make(say)
            self._end(work, ChangeOutcome.DONE, said)
        except LogError as error:
            self._end(work, ChangeOutcome.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours: said on the page, and logged
            self._end(work, ChangeOutcome.FAILED, f"internal error: {error!r}")
            _log.exception("change_failed", command=ordered.command)

    def _end(
        self,
        work: Work,
        outcome: ChangeOutcome = ChangeOutcome.INTERRUPTED,
        said: str = "it was stopped",
    ) -> None:
        """Once; a task that was cancelled, be it before its first step, was stopped."""
        if work.running:
            work.outcome, work.said, work.ended_ms = outcome, said[:SAID_MAX], now_ms()
            _log.info("change_ended", command=work.command, subject=work.subject, outcome=outcome)
            self._news()
