"""Makes passes over a namespace, one after the other, while an election says so."""

import asyncio
from abc import abstractmethod
from contextlib import suppress
from typing import Generic, TypeVar

from dlog.aio.port import Ledgers
from leader import campaign
from ledger.errors import LogError
from ledger.log_events import get_logger
from ledger.metering.declaration import Readiness
from ledger.tasks import Background

P = TypeVar("P")
_log = get_logger(__name__)


class PassRunner(Background, Generic[P]):
    """One pass at a time, whose result is a *P*. `start` and `close`, or an async context manager;
    or only `run_once`."""

    def __init__(self, ledgers: Ledgers, election: str, interval_s: float, *, elect: bool) -> None:
        """*elect*: stay idle while another process holds *election*, a name that no log has."""
        self._ledgers = ledgers
        self._election, self._interval_s, self._elect = election, interval_s, elect
        self._one_pass = asyncio.Lock()
        self.passes = 0
        """How many were finished."""
        self._waiting: list[asyncio.Future[P]] = []
        self._leads = False
        self._failure = ""
        """Why the last pass did not come to its end."""

    def readiness(self) -> Readiness:
        """Ready while the metadata store knows the process; also as one that stands by."""
        if self._ledgers.store.session.lost.is_set():
            reason = "the session of the metadata store is lost"
            return Readiness(ready=False, state="cut off", reasons=(reason,))
        failed = (f"the last pass failed: {self._failure}",) if self._failure else ()
        return Readiness(
            ready=not failed, state="at work" if self._leads else "standing by", reasons=failed
        )

    async def run(self) -> None:
        """Make a pass now and then, for ever. Errors are logged, bugs among them, and the next pass
        tries again; `readiness` has the last one."""
        if not self._elect:
            await self._work(asyncio.Event())
        while True:
            try:
                term = await campaign(self._ledgers.store, self._election, lifeline_host=None)
            except LogError as error:
                _log.warning("not_elected", election=self._election, error=str(error))
                await asyncio.sleep(self._interval_s)
                continue
            async with term:
                await self._work(term.lost)

    async def run_once(self) -> P:
        """Make one pass; return what it did. Raises what listing logs raises."""
        async with self._one_pass:
            done = await self._pass()
        self.passes += 1
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(done)
        return done

    async def next_pass(self) -> P:
        """Wait until a pass is finished; return what it did."""
        waiter: asyncio.Future[P] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return await waiter

    @abstractmethod
    async def _pass(self) -> P:
        """Make a pass."""

    @abstractmethod
    def _pass_failed(self, error: LogError) -> None:
        """Report a pass that did not come to its end."""

    def _stood_down(self) -> None:
        """Forget what is known only while this process works."""

    async def _work(self, lost: asyncio.Event) -> None:
        self._leads = True
        try:
            await self._make_passes(lost)
        finally:
            self._leads, self._failure = False, ""
            self._stood_down()

    async def _make_passes(self, lost: asyncio.Event) -> None:
        while not lost.is_set():
            try:
                await self.run_once()
                self._failure = ""
            except LogError as error:
                self._failure = str(error)
                self._pass_failed(error)
            except Exception as error:  # noqa: BLE001 - a bug must not end the passes to come
                self._failure = repr(error)
                _log.exception("pass_broken", election=self._election)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await lost.wait()
