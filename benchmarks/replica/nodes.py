"""A node of three: a replicated counter on dlog or on PySyncObj, with clients in its own process.

It prints ``{"leads": true}`` once it leads and a first command was applied. On standard input:

    run CLIENTS SECONDS   let so many clients submit commands of 100 bytes, each its next one when
                          the one before was applied; print how many there were and their times
    fill COUNT            submit so many commands of 1,000 bytes, which stay in the state
    applied COUNT         print ``{"applied": ...}`` once the state has so many of those

Call: python -m benchmarks.replica.nodes dlog URI LOG
      python -m benchmarks.replica.nodes pysyncobj|pysyncobj-sync DIRECTORY ADDRESS ADDRESS ADDRESS
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import percentile
from dlog import Command, StateMachine
from dlog.aio import Replica

PAYLOAD: Final = bytes(100)
RECORD: Final = bytes(1000)
IN_FLIGHT: Final = 1000
"""Of the commands that fill the state."""
LOST_S: Final = 5.0
CATCH_UP_S: Final = 1200.0
_POLL_S: Final = 0.002


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def say_ran(times: list[float], seconds: float) -> None:
    p50, p99 = (percentile(times, percent) for percent in (50, 99))
    say(ran=len(times), seconds=seconds, p50=p50, p99=p99)


class Counter(StateMachine):
    def __init__(self) -> None:
        self.count = 0
        self.records: list[bytes] = []

    def apply(self, command: Command) -> object:
        self.count += 1
        if len(command.payload) == len(RECORD):
            self.records.append(command.payload)
        return self.count


async def on_dlog(uri: str, log: str) -> None:
    async with Replica.open(log, Counter(), uri=uri) as replica:
        leading = asyncio.create_task(_tell_leading(replica))
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            match line.decode().split():
                case ["run", clients, seconds]:
                    times, began = list[float](), time.perf_counter()
                    end = began + float(seconds)
                    running = (_client(replica, end, times) for _ in range(int(clients)))
                    await asyncio.gather(*running)
                    say_ran(times, time.perf_counter() - began)
                case ["fill", count]:
                    left = iter(range(int(count)))
                    await asyncio.gather(*(_fill(replica, left) for _ in range(IN_FLIGHT)))
                    say(filled=int(count))
                case ["applied", count]:
                    applied = await replica.read(_kept, timeout_s=CATCH_UP_S)
                    assert applied == int(count), "a read sees all that was acknowledged"
                    say(applied=applied)
                case _:
                    raise ValueError(line)
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


def _kept(counter: Counter) -> int:
    return len(counter.records)


async def _fill(replica: Replica[Counter], left: Iterator[int]) -> None:
    for _ in left:
        await replica.submit(RECORD)


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
            self.records: list[bytes] = []

        @replicated  # type: ignore[untyped-decorator]
        def add(self, payload: bytes) -> int:
            self.count += 1
            if len(payload) == len(RECORD):
                self.records.append(payload)
            return self.count

    node = CounterObject()
    threading.Thread(target=_watch, args=(node, own), daemon=True).start()
    for line in sys.stdin:
        match line.split():
            case ["run", clients, seconds]:
                _run_clients(node, int(clients), float(seconds))
            case ["fill", count]:
                room, done = threading.Semaphore(IN_FLIGHT), threading.Semaphore(0)
                for _ in range(int(count)):
                    room.acquire()
                    node.add(RECORD, callback=partial(_filled, room, done))
                for _ in range(int(count)):
                    done.acquire()
                say(filled=int(count))
            case ["applied", count]:
                while len(node.records) < int(count):
                    time.sleep(_POLL_S)
                say(applied=len(node.records))
            case _:
                raise ValueError(line)


def _run_clients(node: Any, clients: int, seconds: float) -> None:
    times, began = list[float](), time.perf_counter()
    end, left = began + seconds, threading.Semaphore(0)
    for _ in range(clients):
        _submit_in_turn(node, end, times, left)
    for _ in range(clients):  # a change of leaders may cost it a callback
        left.acquire(timeout=max(0.0, end + LOST_S - time.perf_counter()))
    say_ran(times, min(time.perf_counter(), end) - began)


def _filled(room: threading.Semaphore, done: threading.Semaphore, _: object, error: object) -> None:
    assert not error, f"a command was refused: {error}"
    room.release()
    done.release()


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
