"""What readers find missing or damaged, and recoveries doubt, handed to repair: as marks, which its
workers verify.

Best effort, beside the reads and never in their way: what cannot be marked now is found again by
the next reader, or by the auditor's checks. Bounded: one mark is written at a time, a replica is
reported once in a while, and so many wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, assert_never

from ledger.clock import now_ms
from ledger.errors import LogError
from ledger.ids import BookieId, LedgerId
from ledger.log_events import get_logger
from ledger.mark import Lack, Reason
from ledger.mark_nodes import mark_ledger, ring
from ledger.metastore.port import MetadataStore
from ledger.protocol.answers import Fault, RepairHint

AGAIN_MS: Final = 600_000
"""After how long the share of a bookie in a ledger is reported again."""
REMEMBERED_MAX: Final = 1000
WAITING_MAX: Final = 100
CLOSE_S: Final = 1.0

_log = get_logger(__name__)


class Suspicions:
    """Of one client; `close` ends it."""

    def __init__(self, store: MetadataStore, *, wall_clock_ms: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._now_ms = wall_clock_ms
        self._reported: dict[tuple[LedgerId, BookieId], int] = {}
        """When, the oldest first."""
        self._waiting: deque[tuple[LedgerId, tuple[Lack, ...]]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._dropping = False
        """Whether the last one found no room."""
        self._closed = False

    def heard(self, ledger_id: LedgerId, hint: RepairHint) -> None:
        """Take note of a replica that is not as it should be, of an entry that is settled."""
        self._suspect(ledger_id, (hint.bookie,), _reason_of(hint.fault))

    def doubted(self, ledger_id: LedgerId, bookies: Iterable[BookieId]) -> None:
        """Take note of members that may lack entries; a worker asks them what they hold."""
        self._suspect(ledger_id, bookies, Reason.MISSING)

    def _suspect(self, ledger_id: LedgerId, bookies: Iterable[BookieId], reason: Reason) -> None:
        at_ms = self._now_ms()
        news = tuple(each for each in bookies if not self._is_known(ledger_id, each, at_ms))
        if self._closed or not news:
            return
        if len(self._waiting) >= WAITING_MAX:
            if not self._dropping:  # once, until there is room again
                _log.warning("suspicions_dropped", first_ledger_id=ledger_id, bookies=news)
            self._dropping = True
            return
        self._dropping = False
        for bookie in news:
            self._reported.pop((ledger_id, bookie), None)
            if len(self._reported) >= REMEMBERED_MAX:
                del self._reported[next(iter(self._reported))]
            self._reported[ledger_id, bookie] = at_ms
        lacks = tuple(Lack(bookie, reason, at_ms) for bookie in news)
        self._waiting.append((ledger_id, lacks))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    def _is_known(self, ledger_id: LedgerId, bookie: BookieId, at_ms: int) -> bool:
        return at_ms < self._reported.get((ledger_id, bookie), at_ms - AGAIN_MS) + AGAIN_MS

    async def close(self) -> None:
        """Write what waits, within a moment, and nothing more. Idempotent."""
        self._closed = True
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=CLOSE_S)
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while self._waiting:  # what is heard while it rings counts too
                while self._waiting:
                    ledger_id, lacks = self._waiting.popleft()
                    if await mark_ledger(self._store, ledger_id, lacks):
                        bookies = [lack.bookie for lack in lacks]
                        _log.info("replicas_suspected", ledger_id=ledger_id, bookies=bookies)
                await ring(self._store)
        except LogError as error:
            self._waiting.clear()
            self._reported.clear()
            _log.warning("suspicions_not_marked", reason=str(error))
        finally:
            self._writing = None


def _reason_of(fault: Fault) -> Reason:
    match fault:
        case Fault.MISSING:
            return Reason.MISSING
        case Fault.DAMAGED:
            return Reason.DAMAGED
        case _:
            assert_never(fault)
