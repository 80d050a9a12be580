"""dlog's blocking API as a client of the benchmark: `python -m benchmarks.peers.calling URI`."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import loops
from benchmarks.peers.blocking import Appending, commands
from benchmarks.peers.commands import FIRST, Answer, serve, told
from dlog import Log


class _Appending:
    def __init__(self, log: Log) -> None:
        self._log = log

    def append(self, record: bytes, acknowledged: Callable[[], None]) -> None:
        self._log.append_async(record).add_done_callback(lambda _: acknowledged())

    def close(self) -> None:
        self._log.close()


@dataclass(frozen=True, slots=True)
class Calling:
    uri: str

    def open(self, name: str) -> Appending:
        return _Appending(self._begun(name))

    def _begun(self, name: str) -> Log:
        log = Log.open(name, uri=self.uri)
        log.append(FIRST)
        return log

    def tail(self, name: str, seen: Callable[[bytes], bool]) -> None:
        with Log.tail(name, uri=self.uri, start="end") as reader:
            for record in reader:
                if seen(record.value):
                    return

    def throughput(self, name: str, size: float, seconds: float) -> Answer:
        with self._begun(name) as log:
            records, took = loops.appended_blocking(log, int(size), seconds)
        return {"records": records, "seconds": took}

    def fill(self, name: str, size: float, count: float) -> Answer:
        began, left = time.perf_counter(), int(count)
        burst = loops.burst_of(int(size))
        with Log.open(name, uri=self.uri) as log:
            while left > 0:
                log.append_many_async([bytes(int(size))] * min(burst, left))
                left -= burst
            log.flush()
        return {"records": int(count), "seconds": time.perf_counter() - began}

    def lone(self, name: str, size: float, seconds: float) -> Answer:
        with self._begun(name) as log:
            return told(loops.lone_times_blocking(log, int(size), seconds))

    def read(self, name: str, count: float) -> Answer:
        began, found = time.perf_counter(), 0
        with Log.tail(name, uri=self.uri, follow=False) as reader:
            for record in reader:
                found += bool(record.value)
        assert found == count, f"{found} records in {name}, not {count}"
        return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    calling = Calling(sys.argv[1])
    own = {name: getattr(calling, name) for name in ("throughput", "fill", "lone", "read")}
    serve(own | commands(calling))
