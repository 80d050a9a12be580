"""A task's ledger, by blocking calls, on the one client of its process.

Bookies may be away for a while, and a task of Spark's local mode has one attempt. So a ledger
that ends is begun again, as long as what it holds is still at hand; a task that has staged more
fails instead, and Spark runs it again, or the query is started again.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from dlog.aio.write.sink import Assignment, Staged, Stager
from dlog.receipts import Receipt
from dlog.spark.access import Access
from dlog.spark.errors import may_pass
from ledger.backoff import Backoff
from ledger.errors import LogError

T = TypeVar("T")

REPEATED_BYTES_MAX: Final = 32 << 20
"""What a task keeps to stage it again."""
PATIENCE_S: Final = 120.0
BACKOFF_S: Final = 0.2
BACKOFF_S_MAX: Final = 5.0


class StagedLedger:
    """Used by the one thread of a task."""

    def __init__(
        self,
        access: Access,
        assignment: Assignment,
        receipt: Receipt,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._access, self._assignment, self._receipt = access, assignment, receipt
        self._patience_s = patience_s
        self._stager: Stager | None = None
        self._again: list[bytes] | None = []
        """What was added so far; None: it was too much to keep."""
        self._again_bytes = 0

    def add(self, payloads: list[bytes]) -> None:
        """Add batches; waits while too many are under way."""
        kept = self._again
        if kept is not None:
            self._again_bytes += sum(map(len, payloads))
            self._again = None if self._again_bytes > REPEATED_BYTES_MAX else [*kept, *payloads]
        before = kept or []

        async def add() -> None:
            stager = self._stager
            if stager is None:
                stager = self._stager = await self._begin(before)
            for payload in payloads:
                await stager.add(payload)

        self._patiently(add, repeatable=kept is not None)

    def seal(self) -> Staged:
        """Confirm and close."""
        kept = self._again

        async def seal() -> Staged:
            stager = self._stager
            if stager is None:
                stager = self._stager = await self._begin(kept or [])
            return await stager.seal()

        return self._patiently(seal, repeatable=kept is not None)

    def abandon(self) -> None:
        """The janitor deletes it."""
        self._access.run(self._abandon())

    async def _begin(self, payloads: list[bytes]) -> Stager:
        stager = await Stager.begin(await self._access.connected(), self._assignment, self._receipt)
        try:
            for payload in payloads:
                await stager.add(payload)
        except BaseException:
            await stager.abandon()
            raise
        return stager

    async def _abandon(self) -> None:
        stager, self._stager = self._stager, None
        if stager is not None:
            await stager.abandon()

    def _patiently(self, attempt: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        deadline = time.monotonic() + self._patience_s
        backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)

        async def once() -> T:
            return await attempt()

        while True:
            try:
                return self._access.run(once())
            except LogError as error:
                self._access.run(self._abandon())
                if not (repeatable and may_pass(error) and time.monotonic() < deadline):
                    raise
            time.sleep(backoff.next())
