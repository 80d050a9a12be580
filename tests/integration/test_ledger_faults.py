"""Real bookies are killed, stopped and cut off under a writer and two racing recoverers.

Rounds of one ledger each, until the time is up. In a round a writer adds, a reader tails, and
a nemesis makes trouble; then two recoverers race for the ledger while the trouble goes on for
a while; then everything works again and everything must finish. What the clients were told is
checked against `History`, and against the bytes that each bookie holds in the end.

DLOG_TEST_CHAOS_S is how long faults go on (per metadata store), DLOG_TEST_CHAOS_SEED which.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pytest

from dlog.local.cluster import LocalCluster
from ledger import (
    Entry,
    EntryId,
    LedgerClient,
    LedgerId,
    LedgerMetadata,
    LedgerReader,
    LedgerWriter,
    LogError,
)
from ledger.errors import (
    BookieUnavailable,
    EntryLost,
    EntryUnavailable,
    LedgerFenced,
    NotEnoughBookies,
    RecoveryFailed,
)
from ledger.quorum import Quorum, holds
from ledger.requests import ReadQuery, Status
from tests.integration.history import History
from tests.integration.nemesis import POLL_S, Nemesis
from tests.integration.partition import Network
from tests.waiting import PATIENCE_S

CHAOS_S: Final = float(os.environ.get("DLOG_TEST_CHAOS_S", "6"))
SEED: Final = os.environ.get("DLOG_TEST_CHAOS_SEED", "1")
SLACK_S: Final = 180.0
"""For starting and stopping processes, and for what must finish after the faults."""
FINISH_S: Final = 90.0
"""In which everything of a round must finish once its faults are over."""

BOOKIES: Final = 4
BOOKIE_TIMEOUT_S: Final = 0.7
PENDING_MAX: Final = 300
QUORUMS: Final = (*[Quorum(3, 3, 2)] * 3, Quorum(4, 3, 2))
"""With a spare bookie, and striped without one."""
ADDS_MAX: Final = 100_000
"""Of one ledger, so that reading it back does not take all the time."""
STRIPED_ADDS_MAX: Final = 300
"""Who follows a striped ledger gets one entry with each read."""
CLIENTS: Final = ("writer", "tailer", "recoverer 1", "recoverer 2")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(CHAOS_S + SLACK_S + 60)]


@dataclass(slots=True)
class Run:
    """What all rounds share."""

    cluster: LocalCluster
    network: Network
    clients: dict[str, LedgerClient]
    happened: Counter[str] = field(default_factory=Counter)


@asynccontextmanager
async def running(directory: Path, metadata: str | None) -> AsyncIterator[Run]:
    async with AsyncExitStack() as stack:
        cluster = LocalCluster(directory, bookies=BOOKIES, zookeeper=metadata)
        await stack.enter_async_context(cluster)
        network = Network(process.bookie for process in cluster.processes)
        clients = {
            name: await stack.enter_async_context(
                network.client(name, cluster.uri, timeout_s=BOOKIE_TIMEOUT_S)
            )
            for name in CLIENTS
        }
        yield Run(cluster, network, clients)


async def test_bookies_that_die_stop_and_are_cut_off_break_no_promise(
    tmp_path: Path, metadata: str | None
) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CHAOS_S + SLACK_S), running(tmp_path, metadata) as run:
        end, number = loop.time() + CHAOS_S, 0
        while loop.time() < end:
            await Round(run, f"{SEED}/{number}").play()
            number += 1
        print(f"{number} rounds:", dict(sorted(run.happened.items())))
        assert run.happened["acknowledged"] > 0


async def _read_all(reader: LedgerReader, last: int) -> list[Entry]:
    """Read everything, as often as it takes until cut connections have come back.

    What is never readable again runs into the time-out of the whole test."""
    while True:
        try:
            return await reader.read(0, last)
        except EntryUnavailable:
            await asyncio.sleep(POLL_S)


class Round:
    """The life of one ledger."""

    def __init__(self, run: Run, seed: str) -> None:
        self._run = run
        self._random = Random(seed)
        self._history = History()
        self._over = asyncio.Event()
        self._nemesis = Nemesis(
            run.cluster, run.network, CLIENTS, seed, lambda: len(self._history.acknowledged)
        )
        self._seed = seed
        self._adds_max = ADDS_MAX

    async def play(self) -> None:
        try:
            await self._play()
        except BaseException as error:
            story = "\n".join(f"  {fault}" for fault in self._nemesis.story)
            error.add_note(f"seed {self._seed}, {self._history.refused[:1]}, faults:\n{story}")
            raise

    async def _play(self) -> None:
        quorum = self._random.choice(QUORUMS)
        if quorum.ensemble > quorum.write:
            self._adds_max = STRIPED_ADDS_MAX
        client = self._run.clients["writer"]
        await client.bookies.wait_for(BOOKIES, PATIENCE_S)
        writer = await client.create(quorum)
        calm = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write(writer))
            group.create_task(self._tail(writer))
            await self._until_written(writing, 1)
            trouble = group.create_task(self._nemesis.run(calm))
            count = self._random.choice((100, 3_000, 20_000))
            await self._until_written(writing, min(count, self._adds_max))
            ending = self._random.choice(("awake", "asleep", "cornered"))
            await self._take_away(writer, ending)
            recovering = [
                group.create_task(
                    self._recover(name, writer.ledger_id, self._random.uniform(0, 0.3))
                )
                for name in CLIENTS[2:]
            ]
            await asyncio.wait(recovering, timeout=self._random.uniform(0.5, 3.0))
            calm.set()
            await trouble
            self._run.network.heal()
            async with asyncio.timeout(FINISH_S):
                outcomes = [await task for task in recovering]
                self._history.check_closed(outcomes)
                await self._zombie(writer, writing)
                await self._check_everything(writer.ledger_id, outcomes[0])
        self._history.check_closed(outcomes)
        self._count(outcomes[0], ending)

    async def _write(self, writer: LedgerWriter) -> None:
        """Add bursts until the writer is over."""
        history, random = self._history, self._random
        waiting: list[asyncio.Future[EntryId]] = []
        while not self._over.is_set():
            if len(history.payloads) >= self._adds_max:
                await self._over.wait()
                break
            for _ in range(random.choice((1, 10, 100))):
                payload = random.randbytes(random.choice((0, 1, 100, 5000)))
                try:
                    future = writer.add(payload)
                except LogError:
                    return
                note(history, future, payload)
                waiting.append(future)
            if random.random() < 0.2 or len(waiting) >= PENDING_MAX:
                await asyncio.wait(waiting)
                waiting = []
            else:
                await asyncio.sleep(0)
        if waiting:
            await asyncio.wait(waiting)

    async def _until_written(self, writing: asyncio.Task[None], count: int) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + 4.0
        while not writing.done() and loop.time() < until:
            if len(self._history.acknowledged) >= count:
                return
            await asyncio.sleep(POLL_S)

    async def _take_away(self, writer: LedgerWriter, ending: str) -> None:
        """Bring the writer into the situation in which it is recovered."""
        network = self._run.network
        if ending == "asleep":  # and when it wakes up, its last adds arrive after all
            for link in network.links_of("writer"):
                link.cut()
        elif ending == "cornered":  # alone with the one bookie that recovery does not reach
            own, *others = writer.metadata.last_fragment.bookies
            for bookie in others:
                network.link("writer", bookie).cut()
            await asyncio.sleep(self._random.uniform(0, BOOKIE_TIMEOUT_S / 2))
            for name in CLIENTS[2:]:
                network.link(name, own).cut()

    async def _tail(self, writer: LedgerWriter) -> None:
        """Follow the ledger beside its writer, to its end."""
        history = self._history
        reader = await self._run.clients["tailer"].open_no_recovery(writer.ledger_id)
        next_id = 0
        while reader.last_entry is None or next_id <= reader.last_entry:
            try:
                entries = await reader.read_some(next_id, wait_s=1.0)
            except (EntryLost, EntryUnavailable, BookieUnavailable) as error:
                self._run.happened[f"tail: {type(error).__name__}"] += 1
                entries = []
            next_id = history.check_entries(next_id, entries)
            if not reader.closed:
                history.saw_lac(reader.last_add_confirmed, writer.last_add_confirmed)
                assert next_id <= reader.last_add_confirmed + 1, "it read what is not confirmed"
            if entries:
                self._run.happened["tailed"] += len(entries)
        await reader.close()

    async def _recover(self, name: str, ledger_id: LedgerId, delay_s: float) -> LedgerMetadata:
        await asyncio.sleep(delay_s)
        client = self._run.clients[name]
        while True:
            try:
                closed = await client.recover(ledger_id)
            except RecoveryFailed:
                self._run.happened["recoveries begun again"] += 1
                await asyncio.sleep(POLL_S)
            else:
                self._history.saw_close()
                return closed

    async def _zombie(self, writer: LedgerWriter, writing: asyncio.Task[None]) -> None:
        """The writer was not told; it must find out, and answer everything it was asked."""
        self._over.set()
        await writing
        try:
            future = writer.add(b"zombie")
        except LogError as error:
            outcome: LogError = error
        else:
            note(self._history, future, b"zombie")
            with pytest.raises(LogError) as caught:
                await future
            outcome = caught.value
        assert isinstance(outcome, LedgerFenced | NotEnoughBookies), outcome
        with pytest.raises(LogError):
            await writer.close()
        resolved = len(self._history.acknowledged) + len(self._history.refused)
        assert resolved == len(self._history.payloads), "an add was never answered"
        self._run.happened[f"writer: {type(outcome).__name__}"] += 1

    async def _check_everything(self, ledger_id: LedgerId, closed: LedgerMetadata) -> None:
        """Every reader reads all of it; so does who asks each bookie for what it holds."""
        assert closed.last_entry is not None
        for client in self._run.clients.values():
            reader = await client.open(ledger_id)
            assert reader.metadata == closed, "CLOSED is terminal"
            entries = await _read_all(reader, closed.last_entry)
            assert self._history.check_entries(0, entries) == closed.last_entry + 1
            await reader.close()
        copies = await self._copies(self._run.clients["tailer"], ledger_id, closed)
        for entry_id in range(len(self._history.acknowledged)):
            assert copies[entry_id] >= closed.quorum.ack, f"{copies[entry_id]} of {entry_id}"

    async def _copies(
        self, client: LedgerClient, ledger_id: LedgerId, closed: LedgerMetadata
    ) -> Counter[int]:
        """Count, per entry, the bookies of its write set that hold it."""
        copies: Counter[int] = Counter()
        transport, key = client._environment.transport, closed.access_key
        for fragment in closed.fragments:
            end = closed.fragment_end(fragment)
            assert end is not None
            for index, bookie in enumerate(fragment.bookies):
                first: int = fragment.first_entry
                while first <= end:
                    answer = await transport.read(bookie, ReadQuery(ledger_id, key, first, end))
                    if answer.status is Status.UNREACHABLE:  # connections come back in their time
                        await asyncio.sleep(POLL_S)
                        continue
                    if answer.status is Status.NO_SUCH_LEDGER:
                        break
                    assert answer.status is Status.OK, f"{bookie}: {answer.status!r}"
                    copies.update(e for e in answer.entries if holds(index, e, closed.quorum))
                    assert answer.considered >= first
                    first = answer.considered + 1
        return copies

    def _count(self, closed: LedgerMetadata, ending: str) -> None:
        happened, history = self._run.happened, self._history
        happened += self._nemesis.made
        happened["acknowledged"] += len(history.acknowledged)
        happened["refused"] += len(history.refused)
        happened["ensemble changes"] += len(closed.fragments) - 1
        happened[f"writer was {ending}"] += 1
        assert closed.last_entry is not None
        kept = closed.last_entry + 1 - len(history.acknowledged)
        happened["kept though not acknowledged"] += kept


def note(history: History, future: asyncio.Future[EntryId], payload: bytes) -> None:
    """Tell *history* of the add of *payload*, and how it ends."""
    entry_id = history.added(payload)

    def ended(done: asyncio.Future[EntryId]) -> None:
        error = done.exception()
        if error is None or not isinstance(error, LogError):
            history.told(entry_id, done.result())
        else:
            history.told(entry_id, error)

    future.add_done_callback(ended)
