"""Caches of fetches: the newest batches of one led log, and native entries of all logs that were
encoded for consumers of Kafka."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

PROCESS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of all logs of this process together, as long as each has more than `LOG_BYTES_MIN`."""
LOG_BYTES_MIN: Final = 128 * 1024
ENCODED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of native entries of all logs together."""
_DROPPED_MAX: Final = 256
"""Batches that were let go of and still have a place in the lists."""


class RecentBatches:
    """Batches that follow each other without a gap. The oldest are let go of for the newest."""

    _all: Final[WeakSet["RecentBatches"]] = WeakSet()

    def __init__(self, begin: int) -> None:
        """*begin*: offset of the first batch that will be added."""
        self._begins: list[int] = []
        self._batches: list[bytes] = []
        self._dropped = 0
        """How many at the front of the lists are let go of."""
        self._bytes = 0
        self._end = begin
        self._all.add(self)

    @property
    def begin(self) -> int:
        """Offset of the oldest record that is here."""
        return self._begins[self._dropped] if self._dropped < len(self._begins) else self._end

    def add(self, count: int, batch: bytes) -> None:
        """Add *batch* of *count* records behind those before."""
        self._begins.append(self._end)
        self._batches.append(batch)
        self._end += count
        self._bytes += len(batch)
        room = max(LOG_BYTES_MIN, PROCESS_BYTES_MAX // len(self._all))
        while self._bytes > room:
            self._bytes -= len(self._batches[self._dropped])
            self._batches[self._dropped] = b""
            self._dropped += 1
        if self._dropped >= _DROPPED_MAX:
            del self._begins[: self._dropped], self._batches[: self._dropped]
            self._dropped = 0

    def read(self, offset: int, end: int, bytes_max: int) -> list[bytes] | None:
        """Return the batches from the one with *offset* on that are below *end* whole: at most
        *bytes_max* of bytes, but one at least if there is one. None: *offset* is not here."""
        if not self.begin <= offset < self._end:
            return None
        at = bisect_right(self._begins, offset) - 1
        batches: list[bytes] = []
        last = len(self._begins) - 1
        while at <= last:
            batch_end = self._begins[at + 1] if at < last else self._end
            batch = self._batches[at]
            bytes_max -= len(batch)
            if batch_end > end or (batches and bytes_max < 0):
                break
            batches.append(batch)
            at += 1
        return batches

    def clear(self) -> None:
        self._begins.clear()
        self._batches.clear()
        self._dropped = self._bytes = 0
        self._all.discard(self)


class EncodedEntries:
    """Native entries as batches of Kafka without a place. Those used longest ago are let go of."""

    def __init__(self) -> None:
        self._batches: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, incarnation: str, segment: int, entry: int, encode: Callable[[], bytes]) -> bytes:
        """Return that of *entry*, which *encode* makes if it is not here."""
        key = (incarnation, segment, entry)
        batch = self._batches.get(key)
        if batch is not None:
            self._batches.move_to_end(key)
            return batch
        batch = self._batches[key] = encode()
        self._bytes += len(batch)
        while self._bytes > ENCODED_BYTES_MAX and len(self._batches) > 1:
            _, oldest = self._batches.popitem(last=False)
            self._bytes -= len(oldest)
        return batch
