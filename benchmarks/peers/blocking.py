"""Clients of the benchmark whose calls block, as one: dlog's, and confluent-kafka's.

A sender waits for its next moment by sleeping; what was acknowledged is told to it by callbacks.
"""

import time
from collections.abc import Callable
from itertools import count
from threading import Event, Thread
from typing import Final, Protocol

from benchmarks.peers.commands import (
    PATIENCE_S,
    Answer,
    Command,
    burst_and_tick,
    mark_of,
    marked,
    told,
)

_LATER_S: Final = 0.02


class Appending(Protocol):
    """A log or a topic that is open for writing."""

    def append(self, record: bytes, acknowledged: Callable[[], None]) -> None: ...
    def close(self) -> None: ...


class Blocking(Protocol):
    """How a client opens and reads."""

    def open(self, name: str) -> Appending:
        """Open *name* for writing, and append one record, `FIRST`."""

    def tail(self, name: str, seen: Callable[[bytes], bool]) -> None:
        """Call *seen* with what is appended from now on, until it returns True."""


def commands(client: Blocking) -> dict[str, Command]:
    """Return the commands that are the same for each of them."""

    def paced(name: str, size: float, rate: float, seconds: float) -> Answer:
        times = [0.0] * int(rate * seconds)
        payload, all_done, numbers = bytes(int(size)), Event(), count(1)
        log = client.open(name)

        def append(index: int, due: float) -> None:
            def acknowledged() -> None:
                times[index] = time.perf_counter() - due
                if next(numbers) == len(times):
                    all_done.set()

            log.append(payload, acknowledged)

        _send(rate, len(times), append)
        if not all_done.wait(PATIENCE_S):
            raise TimeoutError("not all was acknowledged")
        log.close()
        return told(times)

    def tailed(name: str, size: float, rate: float, seconds: float) -> Answer:
        dues = [0.0] * int(rate * seconds)
        times: list[float] = []
        began = Event()
        log = client.open(name)

        def seen(record: bytes) -> bool:
            now, index = time.perf_counter(), mark_of(record)
            if index < 0:
                began.set()
                return False
            times.append(now - dues[index])
            return len(times) == len(dues)

        def append(index: int, due: float) -> None:
            dues[index] = due
            log.append(marked(int(size), index), _nothing)

        tail = Thread(target=client.tail, args=(name, seen), daemon=True)
        tail.start()
        while not began.wait(_LATER_S):
            log.append(marked(int(size), -1), _nothing)
        _send(rate, len(dues), append)
        tail.join(PATIENCE_S)
        log.close()
        if len(times) != len(dues):
            raise TimeoutError(f"the tail saw {len(times)} of {len(dues)}")
        return told(times)

    return {"paced": paced, "tailed": tailed}


def _nothing() -> None:
    pass


def _send(rate: float, records: int, send: Callable[[int, float], None]) -> None:
    burst, tick_s = burst_and_tick(rate)
    due, index = time.perf_counter() + tick_s, 0
    while index < records:
        # Who is late does not sleep, not even for 0: that would hand the interpreter over, and who
        # has to get it back before each record never catches up.
        if (early_s := due - time.perf_counter()) > 0:
            time.sleep(early_s)
        for _ in range(burst):
            send(index, due)
            index += 1
        due += tick_s
