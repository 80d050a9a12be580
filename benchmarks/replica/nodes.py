"""A node of three: a replicated counter on dlog or on PySyncObj, with clients in its own process.

Asked on standard input ``run CLIENTS SECONDS`` it lets so many clients submit commands of 100
bytes, each its next one when the one before was applied, and prints how many there were and their
times. It prints ``{"leads": true}`` once it leads and a first command was applied.

Call: python -m benchmarks.replica.nodes dlog URI LOG
      python -m benchmarks.replica.nodes pysyncobj|pysyncobj-sync DIRECTORY ADDRESS ADDRESS ADDRESS
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import percentile
from dlog import Command, StateMachine
from dlog.aio import Replica

PAYLOAD: Final = bytes(100)
LOST_S: Final = 5.0
_POLL_S: Final = 0.002


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def say_ran(times: list[float], seconds: float) -> None:
    p50, p99 = (percentile(times, percent) for percent in (50, 99))
    say(ran=len(times), seconds=seconds, p50=p50, p99=p99)


class Counter(StateMachine):
    def __init__(self) -> None:
        self.count = 0

    def apply(self, _: Command) -> object:
        self.count += 1
        return self.count


async def on_dlog(uri: str, log: str) -> None:
    async with Replica.open(log, Counter(), uri=uri) as replica:
        leading = asyncio.create_task(_tell_leading(replica))
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            _, clients, seconds = line.split()
            times, began = list[float](), time.perf_counter()
            end = began + float(seconds)
            await asyncio.gather(*(_client(replica, end, times) for _ in range(int(clients))))
            say_ran(times, time.perf_counter() - began)
        leading.cancel()


async def _tell_leading(replica: Replica[Counter]) -> None:
    while True:
        await replica.wait_role("leader")
        await replica.submit(PAYLOAD)
        say(leads=True)
        await replica.wait_role("standby")


async def _client(replica: Replica[Counter], end: float, times: list[float]) -> None:
    while True:  # at least one, however late it begins
        asked = time.perf_counter()
        await replica.submit(PAYLOAD)
        times.append((now := time.perf_counter()) - asked)
        if now >= end:
            return


def on_pysyncobj(directory: Path, own: str, others: list[str], *, syncs: bool) -> None:
    from pysyncobj import SyncObj, SyncObjConf, replicated

    class CounterObject(SyncObj):  # type: ignore[misc]
        def __init__(self) -> None:
            options = SyncObjConf(
                journalFile=str(directory / "journal"),
                fullDumpFile=str(directory / "dump"),
                flushJournal=syncs,  # an msync of the journal after each entry
            )
            super().__init__(own, others, options)
            self.count = 0

        @replicated  # type: ignore[untyped-decorator]
        def add(self, _: bytes) -> int:
            self.count += 1
            return self.count

    node = CounterObject()
    threading.Thread(target=_watch, args=(node, own), daemon=True).start()
    for line in sys.stdin:
        _, clients, seconds = line.split()
        times, began = list[float](), time.perf_counter()
        end, left = began + float(seconds), threading.Semaphore(0)
        for _ in range(int(clients)):
            _submit_in_turn(node, end, times, left)
        for _ in range(int(clients)):  # a change of leaders may cost it a callback
            left.acquire(timeout=max(0.0, end + LOST_S - time.perf_counter()))
        say_ran(times, min(time.perf_counter(), end) - began)


def _submit_in_turn(node: Any, end: float, times: list[float], left: threading.Semaphore) -> None:
    """A client: its next command leaves in the callback of the one before."""

    def answered(asked: float) -> Callable[[object, object], None]:
        def call(_: object, error: object) -> None:
            now = time.perf_counter()
            if not error:
                times.append(now - asked)
            if now < end:
                node.add(PAYLOAD, callback=answered(now))
            else:
                left.release()

        return call

    node.add(PAYLOAD, callback=answered(time.perf_counter()))


def _watch(node: Any, own: str) -> None:
    led = False
    while True:
        leads = str(node._getLeader()) == own  # noqa: SLF001 - nothing public tells it
        if leads and not led:
            applied = threading.Event()
            node.add(PAYLOAD, callback=partial(_applied, applied))
            if not applied.wait(5.0):
                continue
            say(leads=True)
        led = leads
        time.sleep(_POLL_S)


def _applied(applied: threading.Event, _: object, error: object) -> None:
    if not error:
        applied.set()


def main() -> None:
    kind, *arguments = sys.argv[1:]
    if kind == "dlog":
        asyncio.run(on_dlog(*arguments))
    else:
        directory, own, *others = arguments
        on_pysyncobj(Path(directory), own, others, syncs=kind.endswith("-sync"))
        os._exit(0)


if __name__ == "__main__":
    main()
