"""What runs beside the storage of a bookie: its registration, and its collector, as in production.

`bookie.identity.registration` and `bookie.collector` run on an event loop of the bookie's own, with
a client of the metadata store as any process has it, sessions and lagging reads included. What the
collector does on a thread is an action of the host here: a disk that fails or a power that is lost
strike it like anything else of the bookie.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bookie.collector.collector import Collector, Run
from bookie.collector.plan import CollectorConfig
from bookie.errors import StorageFailed
from bookie.identity.registration import Registrar
from ledger.errors import LogError
from ledger.log_events import now_ms
from ledger.manager import LedgerStore
from ledger.registry import BookieRegistration
from tests.simulation.bookie import INSTANCE, SimBookie
from tests.simulation.kernel.loop import SimLoop
from tests.simulation.loop_store import LoopStore

if TYPE_CHECKING:
    from tests.simulation.logs.world import World

Result = TypeVar("Result")

DISK_S: Final = 0.0, 0.003
REGISTER_AGAIN_S: Final = 0.5
CONFIG: Final = CollectorConfig(
    gc_interval_s=1.0,
    untraced_share=1.0,
    eviction_pause_s=0.0,
    evicted_share=1.0,
    minor_share=0.5,
    major_share=0.9,
    reserve_bytes=0,
)


class DiskLoop(SimLoop):
    """Work for a thread takes a moment, and is done in one step."""

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, function: Callable[..., Result], *args: object
    ) -> asyncio.Future[Result]:
        done: asyncio.Future[Result] = self.create_future()
        delay_s = self.host.scheduler.random.uniform(*DISK_S)
        self.host.after(delay_s, partial(self._call, done, partial(function, *args)))
        return done

    def _call(self, done: asyncio.Future[Result], function: Callable[[], Result]) -> None:
        outcome: Any
        try:
            outcome = function()
        except StorageFailed:
            raise  # the bookie goes down
        except (LogError, OSError) as error:
            self.call_soon(_settle, done, None, error)
        else:
            self.call_soon(_settle, done, outcome, None)


def _settle(done: "asyncio.Future[Any]", outcome: object, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(outcome)
    else:
        done.set_exception(error)


class AtOnce(ThreadPoolExecutor):
    """Has no thread: what nobody waits for is done at once, as the seed says when."""

    def submit(
        self, fn: Callable[..., Result], /, *args: object, **kwargs: object
    ) -> Future[Result]:
        done: Future[Result] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as a thread does
            done.set_exception(error)
        return done


class Serving:
    """One life of a bookie; begins at once, and ends with its host."""

    def __init__(self, world: "World", bookie: SimBookie, *, read_only: bool = False) -> None:
        self.world = world
        self._read_only = read_only
        self._registrar: Registrar | None = None
        self.host = bookie.host
        self.name = f"{bookie.name}@{bookie.host.life}"
        """Sessions of each life are others."""
        self.loop: SimLoop = DiskLoop(bookie.host)  # type: ignore[abstract]
        self._bookie = bookie
        self._random = world.scheduler.random
        self.store = LoopStore(self)
        self.loop.call_soon(self._begin)

    def note(self, what: str) -> None:
        self.world.scheduler.note(self.name, what)

    def mark(self, thing: str) -> None:
        self.world.scheduler.mark("session_expired" if "session" in thing else thing)

    def before_call(self, port: str, what: str) -> None:
        """Bookies are stopped elsewhere."""

    def set_read_only(self) -> None:
        """Announce it as such, from now on."""
        self._read_only = True
        if self._registrar is not None:
            self.loop.call_soon(partial(self._registrar.set_read_only, read_only=True))

    def _begin(self) -> None:
        self.loop.create_task(self._register())
        if self.world.collects:
            self.loop.create_task(self._collect())

    async def _register(self) -> None:
        name = self._bookie.name
        incarnation = f"{name}@{self.host.life}"
        registration = BookieRegistration(
            name, f"{name}:3181", incarnation, read_only=self._read_only
        )
        registrar = self._registrar = Registrar(self.store, registration)
        while True:
            try:
                await registrar.start()
            except LogError as error:
                self.note(f"is not registered: {error}")
                await asyncio.sleep(REGISTER_AGAIN_S)
            else:
                return

    async def _collect(self) -> None:
        storage = self._bookie.storage
        collector = Collector(
            storage.ledger_directories,
            LedgerStore(self.store, self.world.choices.layout.name),
            CONFIG,
            main=self._bookie.disk,
            bookie=self._bookie.name,
            instance=INSTANCE,
            ledger_ids=storage.ledger_ids,
            storage=self,
            clock=self.host.clock,
            wall_clock=lambda: now_ms() / 1000,
        )
        collector._thread = AtOnce(1)
        await collector.begin()
        while True:
            await asyncio.sleep(self._random.uniform(*self.world.collect_s))
            kind = self._random.random()
            if kind < 0.5:
                self._tell("collected", await collector.collect())
            else:
                self._tell("compacted", await collector.compact(major=kind < 0.8))

    def _tell(self, what: str, run: Run) -> None:
        if run.failure:
            self.note(f"has not {what}: {run.failure}")
        elif run.ledgers:
            self.note(f"has collected {run.ledgers} ledgers")
            self.mark("ledgers_collected")
        elif run.moved_bytes:
            self.note(f"has compacted {run.moved_bytes} bytes")
            self.mark("entry_logs_compacted")
        if run.alarm is not None:
            self.note(f"raises {run.alarm.kind.name}: {run.alarm.reason}")

    async def delete(self, ledger_ids: Sequence[int]) -> None:
        await self.loop.run_in_executor(None, self._bookie.storage.delete, ledger_ids)
        self._bookie.service.deleted(ledger_ids)

    def offer(self, ledger_ids: Sequence[int]) -> int:
        return self._bookie.storage.offer(ledger_ids)

    async def evict(self, ledger_ids: Sequence[int], offer: int) -> None:
        evict = partial(self._bookie.evict, ledger_ids, offer)
        await self.loop.run_in_executor(None, evict)
