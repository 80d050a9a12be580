"""Pure: reads given entries from one bookie, and says of each what became of it.

Asks for stretches: entries of an index with no other one of its between them, so a striped share is
read with few requests and nobody's time is spent on what is not wanted. Bounded: by *bytes_max*
of frames, and by two requests per entry.
"""

from collections.abc import Sequence

from ledger.checking import ReplicaFault
from ledger.entry import Header
from ledger.protocol.answers import Found
from ledger.quorum import Quorum, next_held
from ledger.requests import Status


class Fetch:
    """Call `ask` until it returns None, and `took` with the answer to each.

    Every entry ends in `frames`, in `faults` or, once *bytes_max* is reached, in `rest`."""

    def __init__(
        self, entries: Sequence[int], *, index: int, quorum: Quorum, bytes_max: int
    ) -> None:
        """*entries*: ascending, all held by *index* of the ensemble. *bytes_max*: no request is
        made once so much was read; there is at least one."""
        self.headers: dict[int, Header] = {}
        self.frames: dict[int, bytes] = {}
        """Whole ones, copied out of their answers."""
        self.faults: dict[int, ReplicaFault] = {}
        self._index = index
        self._quorum = quorum
        self._left_bytes = bytes_max
        self._todo = list(entries)
        self._alone = False
        """Ask for one entry only: there is trouble with a stretch, and it has to be known where."""
        self._asked = (0, 0)

    @property
    def rest(self) -> list[int]:
        """Entries that nothing is known of yet."""
        return list(self._todo)

    def ask(self) -> tuple[int, int, int] | None:
        """Return first and last entry to read, and about how many bytes at most."""
        if not self._todo or self._left_bytes <= 0:
            return None
        first = last = self._todo[0]
        for entry_id in self._todo[1:]:
            if self._alone or next_held(self._index, last + 1, self._quorum) != entry_id:
                break
            last = entry_id
        self._asked = first, last
        return first, last, self._left_bytes

    def took(self, found: Found) -> None:
        """Take the verified answer to what was asked last."""
        first, last = self._asked
        given = [each for each in self._todo if first <= each <= last and each in found.headers]
        for entry_id in given:
            self.headers[entry_id] = found.headers[entry_id]
            self.frames[entry_id] = bytes(found.frames[entry_id])
            self._left_bytes -= len(self.frames[entry_id])
        alone, self._alone = self._alone, False
        match found.status:
            case Status.UNREACHABLE | Status.TOO_MANY_REQUESTS:
                self._end(self._todo[-1], ReplicaFault.UNREACHABLE)
            case Status.NO_SUCH_LEDGER:
                self._end(self._todo[-1], ReplicaFault.MISSING)
            case _ if found.damaged is not None:
                self._end(min(found.considered, found.damaged - 1), ReplicaFault.MISSING)
                self._end(found.damaged - 1, ReplicaFault.REFUSED)  # nothing, but in limbo
                self._end(found.damaged, ReplicaFault.DAMAGED)
            case Status.OK if found.considered >= first:
                self._end(min(found.considered, last), ReplicaFault.MISSING)
            case Status.IO_ERROR if first < last and not alone:
                self._alone = True
            case Status.IO_ERROR | Status.OK:
                self._end(first, ReplicaFault.UNREADABLE)
            case Status.UNKNOWN:
                # In limbo it has given what it has up to the last of these, or nothing at all.
                self._end(max(given, default=last), ReplicaFault.REFUSED)
            case _:
                self._end(self._todo[-1], ReplicaFault.REFUSED)
        self._todo = [entry_id for entry_id in self._todo if entry_id not in self.frames]

    def _end(self, upto: int, fault: ReplicaFault) -> None:
        """Be done with all entries up to *upto*; those that did not come have *fault*."""
        done = [entry_id for entry_id in self._todo if entry_id <= upto]
        self._todo = self._todo[len(done) :]
        self.faults.update((each, fault) for each in done if each not in self.frames)
