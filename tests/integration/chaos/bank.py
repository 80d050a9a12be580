"""A replica of a bank: asked on standard input, it answers on standard output as JSON lines.

    {"call": 7, "do": "submit", "request": ["client-1", 3], "payload": {...}, "forward": true}
    {"call": 8, "do": "read", "consistency": "local"}
    resign

Call: python -m tests.integration.chaos.bank URI LIFE HOST SNAPSHOTS [--executor] [--bug NAME]
*NAME*: a mutation of `tests.simulation.replicas`, which the run has to find.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, BinaryIO, Final
from zlib import crc32

from dlog import Command, SnapshotPolicy, StateMachine
from dlog.aio import Replica
from ledger.errors import LogError
from tests.integration.chaos.writer import LEASE_S, LOG, say
from tests.linearizable.bank import BankState

KEEP: Final = 3
POLICY: Final = SnapshotPolicy(every_records=40, keep=KEEP, truncate=True)
SUBMIT_S: Final = 8.0
RETRY_S: Final = 0.2
FORWARDED: Final = "replica-"
"""How the name of a client begins that a replica gives to what it forwards without a request."""

Question = dict[str, Any]


class Bank(StateMachine):
    digest_every = 100

    def __init__(self) -> None:
        self.state = BankState()

    def apply(self, command: Command) -> object:
        payload = json.loads(command.payload)
        result = self.state.apply(payload)
        if command.request_id is None or command.request_id.client.startswith(FORWARDED):
            self.state.anonymous[payload["id"]] = result[0]
        return result

    def look(self) -> list[object]:
        state = self.state
        return [state.serial, state.balances, state.anonymous]

    def digest(self) -> bytes:
        return b"%d" % crc32(json.dumps(self.look()).encode())

    def snapshot(self, out: BinaryIO) -> None:
        out.write(json.dumps(self.look()).encode())

    def restore(self, source: BinaryIO) -> None:
        self.state = BankState(*json.loads(source.read()))


class BankReplica:
    def __init__(self, options: argparse.Namespace, executor: Executor | None) -> None:
        self._options, self._executor = options, executor
        self._answering: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        replica = await self._open()
        leading = asyncio.create_task(self._tell_roles(replica))
        try:
            async for question in _questions():
                task = asyncio.create_task(self._answer(replica, question))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
        finally:
            leading.cancel()
            await replica.close()

    async def _open(self) -> Replica[Bank]:
        options = self._options
        while True:
            try:
                return await Replica.open(
                    LOG,
                    Bank(),
                    uri=options.uri,
                    candidate=options.life,
                    address=options.life,
                    lease_s=LEASE_S,
                    lifeline_host=options.host,
                    snapshots=options.snapshots,
                    policy=POLICY,
                    executor=self._executor,
                )
            except LogError as error:
                if not (error.retryable or error.outcome_unknown):
                    say("broken", what=f"not opened: {type(error).__name__}: {error}")
                say("trouble", error=f"open: {type(error).__name__}: {error}")
                await asyncio.sleep(RETRY_S)

    async def _tell_roles(self, replica: Replica[Bank]) -> None:
        try:
            while True:
                await replica.wait_role("leader")
                say("leading", epoch=replica.epoch)
                await replica.wait_role("standby")
                say("led", reason="")
        except Exception as error:  # noqa: BLE001 - whatever stopped it, nothing should have
            say("broken", what=f"stopped: {type(error).__name__}: {error}")

    async def _answer(self, replica: Replica[Bank], question: Question) -> None:
        fields: dict[str, object] = {}
        try:
            match question["do"]:
                case "resign":
                    await replica.resign()
                    return
                case "submit":
                    request = question["request"]
                    fields["result"] = await replica.submit(
                        json.dumps(question["payload"]).encode(),
                        request_id=tuple(request) if request else None,
                        timeout_s=SUBMIT_S,
                        forward=question["forward"],
                    )
                case "read":
                    fields["complete_at"] = complete_at(replica)  # before, as it may grow meanwhile
                    query: Callable[[Bank], list[object]] = _balances
                    if question["whole"]:
                        query = Bank.look
                    fields["result"] = await replica.read(
                        query, consistency=question["consistency"], timeout_s=SUBMIT_S
                    )
                case other:
                    raise AssertionError(f"nobody says {other}")
        except LogError as error:
            fields = {
                "error": type(error).__name__,
                "refused": error.retryable and not error.outcome_unknown,
                "leader": getattr(error, "address", ""),
            }
        if "call" in question:
            say("answer", call=question["call"], **fields)


def complete_at(replica: Replica[Bank]) -> float | None:
    age_s = replica.age_s()
    return None if age_s == float("inf") else asyncio.get_running_loop().time() - age_s


def _balances(bank: Bank) -> list[object]:
    return [bank.state.serial, list(bank.state.balances)]


async def _questions() -> Any:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        yield {"do": "resign"} if line == b"resign\n" else json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("uri", "life", "host", "snapshots"):
        parser.add_argument(name)
    parser.add_argument("--executor", action="store_true")
    parser.add_argument("--bug")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.bug:
            from tests.simulation.mutations import put_back

            stack.enter_context(put_back(options.bug))
        executor = None
        if options.executor:
            executor = stack.enter_context(ThreadPoolExecutor(1))
        asyncio.run(BankReplica(options, executor).run())


if __name__ == "__main__":
    main()
