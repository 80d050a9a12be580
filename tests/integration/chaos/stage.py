"""One run: the processes, what they say, the trouble, and the reckoning at the end."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from dlog.aio import Log
from dlog.aio.admin import create_log, log_info, truncate_log
from dlog.settings import LogSettings
from ledger import ClientConfig, LedgerClient, Quorum
from ledger.errors import LogError
from ledger.security.settings import OFF, TlsSettings
from tests.integration.chaos.certificates import STAGE, Certificates
from tests.integration.chaos.ensemble import Ensemble
from tests.integration.chaos.faults import Fault, Maker, kinds, together
from tests.integration.chaos.history import History, Seen, seen_by
from tests.integration.chaos.places import Places
from tests.integration.chaos.processes import Cluster, Event, Member
from tests.integration.chaos.writer import LOG

PROGRESS_S: Final = 60.0
"""In which an append must be acknowledged again, once a fault is over."""
FINISH_S: Final = 90.0
DOUBLE_SHARE: Final = 0.3
"""Of faults that come with another one at the same time."""
TRUNCATE_EVERY_S: Final = 2.0
KEEP_RECORDS: Final = (400, 3_000, 15_000)
POLL_S: Final = 0.02
WRITER: Final = "tests.integration.chaos.writer"
READER: Final = "tests.integration.chaos.reader"
HELPER: Final = "bookie.autorecovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seconds: float
    seed: str
    zookeepers: int = 3
    """0: the embedded metadata store."""
    bookies: int = 4
    writers: int = 3
    readers: int = 3
    helpers: int = 0
    """Processes of repair."""
    helper_options: tuple[str, ...] = ()
    roll_age_s: float = 1.0
    truncates: bool = True
    nemeses: tuple[str, ...] = ()
    """Of those of `nemeses`, by name; empty: all."""
    tls: bool = False
    """All have TLS but the metadata store, roles granted, certificates renewed all the while."""


class Stage:
    def __init__(self, plan: Plan, directory: Path, places: Places, why_not_apart: str) -> None:
        self._plan = plan
        self._directory = directory
        self._places = places
        self._why_not_apart = why_not_apart
        self._stack = AsyncExitStack()
        self._leader: Member | None = None
        self._client: LedgerClient | None = None
        self._usurpations = 0
        self._positions: dict[str, int] = {}
        self._finished: set[str] = set()
        self._stop = asyncio.Event()
        self._began = 0.0
        self.history = History()
        self.happened: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.ensemble: Ensemble | None = None
        self.certificates: Certificates | None = None
        self.writers: list[Member] = []
        self.readers: list[Member] = []
        self.helpers: list[Member] = []
        self.observers: list[Member] = []

    # What the members say.

    def hear(self, member: Member, event: Event) -> None:
        history = self.history
        match event["event"]:
            case "acknowledged":
                for sequence, offset, _ in event["answers"]:
                    record = f"{member.life}:{sequence}".encode()
                    history.told(offset, record, event["epoch"])
                    history.times.append(event["at"])
            case "appending":
                pass  # see `recording`
            case "refused":
                history.refused += 1
                self.happened[f"append refused: {event['error']}"] += 1
            case "leading":
                self._leader = member
                self.happened["promotions"] += 1
                self.note(f"{member.life} leads in epoch {event['epoch']}")
            case "led":
                if self._leader is member:
                    self._leader = None
                self.note(f"{member.life} leads no more: {event['reason'] or 'resigned'}")
            case "at":
                self._positions[member.name] = event["position"]
            case "trimmed":
                self.happened["readers told Trimmed"] += 1
            case "truncated":
                self.happened["truncations by the leader"] += 1
            case "trouble":
                self.happened[f"{member.name[:6]}: {event['error'].partition(':')[0]}"] += 1
                self.note(f"{member.life}: {event['error']}")
            case "broken":
                history.broken.append(f"{member.life}: {event['what']}")
                self.note(f"{member.life} BROKE A PROMISE: {event['what']}")
            case "finished":
                self._finished.add(member.name)
            case other:
                raise AssertionError(f"nobody says {other}")

    def note(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:7.2f}  {what}", flush=True)

    def leader(self) -> Member | None:
        return self._leader

    # What faults need.

    async def start_writer(self, writer: Member) -> None:
        if self._leader is writer:
            self._leader = None
        life = f"{writer.name}.{writer.lives + 1}"
        await writer.start(WRITER, self.cluster.uri, life, writer.place.host)

    async def start_reader(self, reader: Member) -> None:
        await reader.start(READER, self.cluster.uri, str(self._file(reader)))

    async def start_helper(self, helper: Member) -> None:
        await helper.start(HELPER, "--uri", self.cluster.uri, *self._plan.helper_options)

    async def usurp(self) -> None:
        """Open the log without being elected: whoever leads must not acknowledge any more."""
        self._usurpations += 1
        assert self._client is not None
        with suppress(LogError):
            async with await Log.open(LOG, client=self._client, owner="usurper") as log:
                record = f"usurper.{self._usurpations}:0".encode()
                found = await log.append(record)
                self.history.told(found.offset, record, log.epoch)
                self.history.times.append(time.monotonic())

    # The run.

    async def run(self) -> None:
        self._began = time.monotonic()
        try:
            async with self._stack:
                await self._start()
                await self._trouble()
                end = await self._finish()
                await self._check(end)
        except BaseException:
            self.report()
            raise
        self.report()

    async def _start(self) -> None:
        plan, make, stack = self._plan, self._places.make, self._stack
        if not self._places.apart:
            self.note(f"links are not cut: no network namespaces here: {self._why_not_apart}")
        stack.callback(self._places.close)
        await self._places.prepare()
        uri = None
        if plan.zookeepers:
            places = [await make(f"zookeeper-{index}") for index in range(plan.zookeepers)]
            self.ensemble = Ensemble(self._directory, places)
            stack.push_async_callback(self.ensemble.stop)
            await self.ensemble.start()
            uri = self.ensemble.uri("/chaos") + ("?tls=off" if plan.tls else "")
        if plan.tls:
            self.certificates = Certificates(self._directory / "tls", plan.seed)
        places = [await make(f"bookie-{index}") for index in range(plan.bookies)]
        self.cluster = Cluster(
            self._directory / "cluster", places, uri, self.certificates, self._launch
        )
        await stack.enter_async_context(self.cluster)
        config = ClientConfig(tls=self._tls_of(STAGE))
        self._client = await LedgerClient.connect(self.cluster.uri, config)
        stack.push_async_callback(self._client.close)
        settings = LogSettings(quorum=Quorum(3, 3, 2), roll_age_s=plan.roll_age_s)
        for kind, names, count in (
            ("writer", self.writers, plan.writers),
            ("reader", self.readers, plan.readers),
            ("helper", self.helpers, plan.helpers),
        ):
            for index in range(count):
                name = f"{kind}-{index}"
                place = await make(name)
                tls = self._tls_of(name)
                member = Member(name, place, self._directory, self.hear, tls, self._launch(name))
                names.append(member)
                stack.push_async_callback(member.kill)
        if self.certificates is not None:
            await self.certificates.grant(self._client.store, LOG)
            stack.enter_context(_beside(self.certificates.keep_renewing()))
        await self._create_logs(settings)
        for member in self.writers:
            await self.start_writer(member)
        for member in self.readers:
            await self.start_reader(member)
        for member in self.helpers:
            await self.start_helper(member)
        await self._until(lambda: bool(self.history.times), PROGRESS_S, "a first acknowledgement")
        self.note(
            f"{len(self.ensemble.servers) if self.ensemble else 'no'} ZooKeepers, "
            f"{plan.bookies} bookies, {plan.writers} writers, {plan.readers} readers run"
        )

    async def _create_logs(self, settings: LogSettings) -> None:
        await create_log(LOG, settings=settings, client=self._client)

    def _launch(self, _name: str) -> Sequence[str]:
        """Return what runs the module of a process, with its arguments; empty: nothing does."""
        return ()

    def _tls_of(self, name: str) -> TlsSettings:
        return OFF if self.certificates is None else self.certificates.of(name)

    async def _trouble(self) -> None:
        """Faults until the time is over. At the end every fault is undone."""
        async with asyncio.TaskGroup() as group:
            truncating = group.create_task(self._truncate()) if self._plan.truncates else None
            lines = [group.create_task(line) for line in self._lines()]
            await self._pause(self._plan.seconds)
            self._stop.set()
            await asyncio.wait(lines)
            if truncating is not None:
                truncating.cancel()

    def _lines(self) -> list[Coroutine[Any, Any, None]]:
        """Return what makes trouble, side by side, until `_stop` is set."""
        found = kinds(zookeepers=self._plan.zookeepers, cuts=self._places.apart)
        return [self._line("appends", found.appends), self._line("readers", found.readers)]

    async def _line(
        self, name: str, makers: dict[str, Maker], rest_s: tuple[float, float] = (0.3, 1.5)
    ) -> None:
        """Draw faults so that each kind comes before any comes again, with rests in between."""
        random = Random(f"{self._plan.seed} {name}")
        deck: list[str] = []
        while not self._stop.is_set():
            if not deck:
                deck = random.sample(sorted(makers), len(makers))
            drawn = [deck.pop()]
            if deck and together(drawn[0], deck[-1]) and random.random() < DOUBLE_SHARE:
                drawn.append(deck.pop())
            fault = Fault(" and ".join(sorted(drawn)), time.monotonic())
            self.faults.append(fault)
            async with asyncio.TaskGroup() as group:
                for kind in drawn:
                    seconds = random.choice((random.uniform(0.1, 1.5), random.uniform(1.5, 7.0)))
                    group.create_task(self._make(kind, makers[kind], random, seconds))
            fault.end = time.monotonic()
            if name == "appends":
                fault.resumed = await self._acknowledged_after(fault.end, fault.kind)
            await self._pause(random.uniform(*rest_s))

    async def _make(self, kind: str, maker: Maker, random: Random, seconds: float) -> None:
        async with maker(self, random) as target:
            self.note(f"{kind}: {target}, for {seconds:.1f} s")
            await self._pause(seconds)
        self.happened[f"fault: {kind}"] += 1

    async def _acknowledged_after(self, since: float, what: str) -> float:
        """Return when the next append was acknowledged."""
        await self._until(
            lambda: self._last() > since, PROGRESS_S, f"an acknowledgement after {what}"
        )
        return self._last()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    def _last(self) -> float:
        return self.history.times[-1]

    async def _truncate(self) -> None:
        """Truncate beside the writer and through it, by turns; sometimes readers are overtaken."""
        random = Random(f"{self._plan.seed} truncations")
        turn = 0
        while True:
            await asyncio.sleep(TRUNCATE_EVERY_S)
            turn += 1
            before = max(self.history.acknowledged) - random.choice(KEEP_RECORDS)
            if before <= self.history.truncated_before:
                continue
            self.history.truncated_before = before
            if turn % 2 and self._leader is not None:
                self._leader.tell(f"truncate {before}")
                continue
            try:
                await truncate_log(LOG, before=before, client=self._client)
                self.happened["truncations beside the writer"] += 1
            except LogError as error:
                self.happened[f"truncation: {type(error).__name__}"] += 1

    async def _finish(self) -> int:
        """End the writers in order; return the end of the log once every reader is there."""
        self.note("the trouble is over")
        await self._acknowledged_after(time.monotonic(), "all trouble")
        for writer in self.writers:
            writer.signal(signal.SIGCONT)
            writer.tell("finish")
        names = {writer.name for writer in self.writers}
        await self._until(lambda: self._finished >= names, FINISH_S, "the end of all writers")
        end = await Log.end_of(LOG, client=self._client)
        self.note(f"the log ends at {end}")

        def all_there() -> bool:
            return all(self._positions.get(each.name, 0) >= end for each in self.readers)

        await self._until(all_there, FINISH_S, f"all readers at {end}: {self._positions}")
        return end

    async def _check(self, end: int) -> None:
        for reader in self.readers:
            await reader.kill()
        seen = {reader.name: seen_by(self._file(reader)) for reader in self.readers}
        info = await log_info(LOG, client=self._client)
        records: dict[int, bytes] = {}
        async with await Log.tail(LOG, follow=False, client=self._client) as fresh:
            async for record in fresh:
                records[record.offset] = record.value
        first = min(records, default=end)
        assert sorted(records) == list(range(first, end)), "a fresh reader misses offsets"
        seen["a fresh reader"] = Seen(records, [(0, first)] if first else [], end)
        if self.certificates is not None:
            self.happened["renewals of all certificates"] = self.certificates.renewals
        self.happened["segments at the end"] = len(info.manifest.segments)
        self.history.check(seen, end)
        self.note(
            f"{len(self.history.acknowledged)} acknowledged records found by each of "
            f"{len(seen)} readers, once and in order, from where they were not trimmed; "
            f"{end} in the log, {len(records)} kept"
        )
        for name, each in seen.items():
            gone = sum(to - first for first, to in each.gaps)
            self.note(f"  {name}: {len(each.records)} records, {gone} trimmed before it read them")

    async def _until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            for member in (*self.writers, *self.readers, *self.helpers, *self.observers):
                assert not member.ended_by_itself or member.name in self._finished, (
                    f"{member.life} ended by itself:\n{member.log_tail()}"
                )
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
            await asyncio.sleep(POLL_S)

    def _file(self, reader: Member) -> Path:
        return self._directory / f"{reader.name}.records"

    def _acknowledged(self) -> str:
        count = len(self.history.acknowledged)
        return f"{count} records acknowledged in {self.history.epochs} epochs"

    def report(self) -> None:
        history = self.history
        print(
            f"\nseed {self._plan.seed}, {time.monotonic() - self._began:.0f} s, "
            f"{self._acknowledged()}, {history.refused} refused"
        )
        for what, count in sorted(self.happened.items()):
            print(f"  {count:6}  {what}")
        if len(history.times) < 2:
            return
        history.times.sort()
        print("write outages (s), by fault: count, median, worst; worst after the fault was over")
        by_kind: dict[str, list[Fault]] = {}
        for fault in self.faults:
            if fault.resumed:
                fault.outage = history.longest_outage(fault.begin, fault.resumed)
                by_kind.setdefault(fault.kind, []).append(fault)
        for faults in by_kind.values():
            faults.sort(key=lambda fault: fault.outage)
        for kind, faults in sorted(by_kind.items(), key=lambda item: -item[1][-1].outage):
            median, worst = faults[len(faults) // 2].outage, faults[-1].outage
            after = max(fault.resumed - fault.end for fault in faults)
            print(f"  {len(faults):4} {median:7.2f} {worst:7.2f} {after:7.2f}  {kind}")
        longest = history.longest_outage(history.times[0], history.times[-1])
        print(f"longest write outage: {longest:.2f} s", flush=True)


@contextmanager
def _beside(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """Let *work* run until the end of the block."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
