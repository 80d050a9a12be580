"""Replicas of a bank under real trouble, and its clients, which repeat what they have no answer to.

Clients live in this process, so that one clock has all calls and answers. Two replicas share a
directory of snapshots, one has its own; at times the newest one is damaged, cut off or removed.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

from dlog.aio import Log
from dlog.errors import DamagedSnapshot
from dlog.protocol.snapshot import check_snapshot
from ledger.errors import LogError
from tests.integration.chaos.bank import SUBMIT_S
from tests.integration.chaos.faults import Maker, kinds
from tests.integration.chaos.places import Places
from tests.integration.chaos.processes import Event, Member
from tests.integration.chaos.stage import FINISH_S, Plan, Stage
from tests.integration.chaos.writer import LOG
from tests.linearizable.bank import ACCOUNTS, BankHistory, BankState, Effect, Payload, Read

BANK: Final = "tests.integration.chaos.bank"
CLIENTS: Final = 8
PAUSES_S: Final = (0.0, 0.02, 0.2)
RETRY_S: Final = 0.05
ANSWER_S: Final = 3.0
"""How long a client waits for an answer before it asks elsewhere."""
FORWARDED: Final = 0.4
"""The share of commands that any replica is given, which sends them to the leader."""
REPEATED: Final = 40
"""So many of its last requests a client may repeat; the table of clients has more."""
WHOLE_LEFT: Final = 2
"""Snapshots that are whole, beside the one that is damaged."""


class NoAnswer(Exception):
    def __init__(self, answer: Event | None) -> None:
        super().__init__(str(answer))
        self.refused = answer is not None and bool(answer["refused"])
        """Whether the replica said that it certainly did nothing."""
        self.leader = "" if answer is None else answer["leader"]


class BankStage(Stage):
    def __init__(
        self, plan: Plan, directory: Path, places: Places, why_not_apart: str, *, bug: str = ""
    ) -> None:
        plan = replace(plan, readers=0, truncates=False)
        super().__init__(plan, directory, places, why_not_apart)
        self.bank = BankHistory()
        self.end = BankState()
        self._bug = bug
        self._calls = 0
        self._answers: dict[int, asyncio.Future[Event]] = {}
        self._leader_name = ""
        self._clients: list[asyncio.Task[None]] = []
        self._clients_end = asyncio.Event()

    # Replicas.

    async def start_writer(self, writer: Member) -> None:
        if self._leader is writer:
            self._leader = None
        number = self.writers.index(writer)
        options = ["--executor"] if number == 1 else []
        if self._bug:
            options += ["--bug", self._bug]
        life = f"{writer.name}.{writer.lives + 1}"
        snapshots = f"file://{self._snapshots(number)}"
        await writer.start(BANK, self.cluster.uri, life, writer.place.host, snapshots, *options)

    def _snapshots(self, number: int) -> Path:
        return self._directory / ("shared" if number < 2 else "own")

    def hear(self, member: Member, event: Event) -> None:
        if event["event"] == "answer":
            waiting = self._answers.pop(event["call"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(event)
            return
        super().hear(member, event)
        if event["event"] == "broken":
            self._stop.set()

    async def usurp(self) -> None:
        """Take the log over and append nothing: whoever leads must not acknowledge any more."""
        with suppress(LogError):
            async with await Log.open(LOG, client=self._client, owner="usurper"):
                self.happened["takeovers by a stranger"] += 1

    # Clients.

    async def _start(self) -> None:
        for number in range(CLIENTS):
            client = asyncio.create_task(self._client_of(number))
            self._stack.callback(client.cancel)
            self._clients.append(client)
        await super()._start()

    async def _client_of(self, number: int) -> None:
        name, random = f"client-{number}", Random(f"{self._plan.seed} client {number}")
        answered: dict[int, Effect] = {}
        sequence = 0
        while not self._clients_end.is_set():
            await asyncio.sleep(random.choice(PAUSES_S))
            if len(self.writers) < self._plan.writers:
                continue  # not started yet
            drawn = random.random()
            if drawn < 0.45:
                sequence += 1
                effect = self._begin(name, sequence, random)
                await self._until_answered(effect, sequence, random)
                answered[sequence] = effect
                if len(answered) > REPEATED:
                    del answered[min(answered)]
            elif drawn < 0.55:
                sequence += 1
                await self._once(self._begin(name, sequence, random), random)
            elif drawn < 0.7 and answered:
                repeated = random.choice(list(answered))
                await self._repeat(answered[repeated], repeated, random)
            elif drawn < 0.9:
                await self._read(name, random)
            else:
                await self._read_locally(name, random)

    def _begin(self, client: str, sequence: int, random: Random) -> Effect:
        source, to = random.sample(range(ACCOUNTS), 2)
        payload: Payload = {"op": "deposit", "to": to, "amount": random.randint(1, 20)}
        if random.random() < 0.7:
            payload |= {"op": "transfer", "from": source}
        payload["id"] = f"{client}:{sequence}"
        effect = Effect(client, payload, time.monotonic())
        self.bank.effects.append(effect)
        return effect

    async def _until_answered(self, effect: Effect, number: int, random: Random) -> None:
        while True:
            try:
                result = await self._submit(effect, number, random)
            except NoAnswer:
                self.happened["requests repeated without an answer"] += 1
                await asyncio.sleep(RETRY_S)
            else:
                self._answered(effect, result)
                return

    async def _once(self, effect: Effect, random: Random) -> None:
        try:
            result = await self._submit(effect, None, random)
        except NoAnswer as error:
            effect.refused = error.refused
            self.happened["commands refused" if error.refused else "commands without outcome"] += 1
        else:
            self._answered(effect, result)

    async def _repeat(self, effect: Effect, number: int, random: Random) -> None:
        """Submit again what was answered, as a network that doubles messages does."""
        with suppress(NoAnswer):
            result = await self._submit(effect, number, random)
            self.happened["answered requests repeated"] += 1
            if result != effect.result:
                self._broken(f"{effect} has another result, {result}")

    async def _submit(self, effect: Effect, number: int | None, random: Random) -> list[int]:
        leader = [each for each in self.writers if each.life == self._leader_name]
        forward = random.random() < FORWARDED
        asks_leader = leader and not forward and random.random() < 0.9
        replica = leader[0] if asks_leader else random.choice(self.writers)
        request = None if number is None else [effect.client, number]
        question: dict[str, object] = {
            "do": "submit",
            "request": request,
            "payload": effect.payload,
            "forward": forward,
        }
        try:
            answer = await self._ask(replica, question)
        except NoAnswer as error:
            self._leader_name = error.leader
            raise
        if forward:
            self.happened["commands of any replica"] += 1
        else:
            self._leader_name = replica.life
        result: list[int] = answer["result"]
        return result

    def _answered(self, effect: Effect, result: list[int]) -> None:
        effect.returned, effect.result = time.monotonic(), result
        self.bank.acknowledged = max(self.bank.acknowledged, result[0])
        self.history.times.append(effect.returned)

    async def _read(self, client: str, random: Random) -> None:
        known, call = self.bank.acknowledged, time.monotonic()
        with suppress(NoAnswer):
            question = {"do": "read", "consistency": "linearizable", "whole": False}
            answer = await self._ask(random.choice(self.writers), question)
            serial, balances = answer["result"]
            self.bank.reads.append(Read(client, call, time.monotonic(), serial, balances, call))
            if serial < known:
                self._broken(f"a read of {client} saw effect {serial}, and {known} was answered")
            self.bank.acknowledged = max(self.bank.acknowledged, serial)

    async def _read_locally(self, client: str, random: Random) -> None:
        call = time.monotonic()
        with suppress(NoAnswer):
            question = {"do": "read", "consistency": "local", "whole": False}
            answer = await self._ask(random.choice(self.writers), question)
            serial, balances = answer["result"]
            sees = answer["complete_at"] or 0.0
            read = Read(client, call, time.monotonic(), serial, balances, sees)
            self.bank.local_reads.append(read)

    async def _ask(
        self, replica: Member, question: Mapping[str, object], within_s: float = ANSWER_S
    ) -> Event:
        """Raises `NoAnswer`."""
        if not replica.running:
            raise NoAnswer(None)
        self._calls += 1
        call = self._calls
        answering = self._answers[call] = asyncio.get_running_loop().create_future()
        replica.tell(json.dumps({"call": call, **question}))
        try:
            async with asyncio.timeout(within_s):
                answer: Event = await answering
        except TimeoutError:
            raise NoAnswer(None) from None
        finally:
            self._answers.pop(call, None)
        if "error" in answer:
            self.happened[f"answer: {answer['error']}"] += 1
            raise NoAnswer(answer)
        return answer

    def _broken(self, what: str) -> None:
        self.history.broken.append(what)
        self.note(f"BROKE A PROMISE: {what}")
        self._stop.set()

    # Trouble.

    def _lines(self) -> list[Coroutine[Any, Any, None]]:
        made = kinds(zookeepers=self._plan.zookeepers, cuts=self._places.apart)
        snapshots = {
            f"{how} a snapshot": self._harm(how) for how in ("damage", "cut off", "remove")
        }
        return [
            self._line("appends", made.appends),
            self._line("snapshots", snapshots, rest_s=(0.5, 3.0)),
        ]

    def _harm(self, how: str) -> Maker:
        @asynccontextmanager
        async def making(_: object, random: Random) -> AsyncIterator[str]:
            directory = self._snapshots(random.choice((0, 2)))
            *others, newest = [directory, *sorted(directory.glob("*/*.snapshot"))]
            if sum(map(_is_whole, others[1:])) < WHOLE_LEFT:
                yield "no snapshot, as there are too few"
                return
            with suppress(FileNotFoundError):
                if how == "remove":
                    newest.unlink()
                else:
                    content = bytearray(newest.read_bytes())
                    at = random.randrange(len(content))
                    content[at] ^= 1 << random.randrange(8)
                    newest.write_bytes(content if how == "damage" else content[:at])
                self.happened[f"{how} a snapshot that others were before"] += 1
            yield f"{directory.name}/{newest.name}"

        return making

    # The end.

    async def _finish(self) -> int:
        self.note("the trouble is over")
        self._clients_end.set()
        _, late = await asyncio.wait(self._clients, timeout=FINISH_S)
        if late:
            self._broken(f"{len(late)} clients have no answer")
        for client in self._clients:
            if client.done():
                client.result()
        return await Log.end_of(LOG, client=self._client)

    async def _check(self, _: int) -> None:
        ends = [await self._whole(replica) for replica in self.writers]
        await self.writers[0].kill()
        await self.start_writer(self.writers[0])
        ends.append(await self._whole(self.writers[0]))
        self.end = BankState(*ends[0])
        if any(end != ends[0] for end in ends):
            self.history.broken.append(f"the replicas end with different states: {ends}")
        bank, broken = self.bank, self.history.broken
        broken += bank.check(self.end)
        self.note(
            f"{self.end.serial} effects, {len(bank.reads)} linearizable and "
            f"{len(bank.local_reads)} local reads, {sum(self.end.balances)} in all accounts; "
            f"{len(broken)} promises broken"
        )
        assert not broken, f"{len(broken)} promises broken:\n" + "\n".join(broken[:20])

    async def _whole(self, replica: Member) -> list[Any]:
        question = {"do": "read", "consistency": "linearizable", "whole": True}
        deadline = time.monotonic() + FINISH_S
        while True:
            try:
                return list((await self._ask(replica, question, SUBMIT_S))["result"])
            except NoAnswer:
                assert time.monotonic() < deadline, f"{replica.life} does not answer"
                await asyncio.sleep(RETRY_S)


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as source:
            check_snapshot(source, path.stat().st_size)
    except (DamagedSnapshot, FileNotFoundError):
        return False
    return True
