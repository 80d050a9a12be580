"""Requests to a bookie and its answers, as plain values.

The transport turns these into messages and back; the bookie's storage and the simulator use
them as they are. Frames are the bytes of `ledger.entry`; a run or an answer carries many
frames in one buffer with their ids and lengths as columns, never one object per entry.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class Status(IntEnum):
    """A bookie's answer. Same numbers as `Status` in bookie.proto; see there for meanings."""

    OK = 1
    NO_SUCH_LEDGER = 2
    FENCED = 3
    WRONG_KEY = 4
    IO_ERROR = 5
    TOO_MANY_REQUESTS = 6
    READ_ONLY = 7
    BAD_REQUEST = 8
    DAMAGED = 9
    CONFLICT = 10
    UNKNOWN = 11
    ACCESS_DENIED = 12
    UNREACHABLE = 100
    """Never sent: the transport's word for "no answer": refused, broken or timed out."""


@dataclass(frozen=True, slots=True)
class AddRun:
    """Entries of one ledger for one bookie, ids ascending; each frame carries its own header."""

    ledger_id: int
    key: bytes = field(repr=False)
    entries: Sequence[int]
    lengths: Sequence[int]
    frames: bytes | memoryview
    recovery: bool = False
    """A recovery add or re-replication: a fenced or read-only bookie takes it too."""
    explicit_lac: bool = False
    """The one frame is an explicit LAC (`entry.encode_lac`): kept in memory, not an entry."""


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """Ask for the entries first..last that the bookie holds, up to *bytes_max* (at least one)."""

    ledger_id: int
    key: bytes = field(repr=False)
    first: int
    last: int
    bytes_max: int = 1024 * 1024
    fence: bool = False
    """Recovery read: fence durably before any answer, also before a "no" (rules 32, 33)."""
    wait_ms: int = 0
    """If positive, wait this long at most until an entry >= first is confirmed, the ledger is
    fenced or deleted; then answer with confirmed entries only."""
    repairs: bool = False
    """For a recovery or a repair: it counts for no quota."""


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    status: Status
    entries: Sequence[int] = ()
    lengths: Sequence[int] = ()
    frames: bytes | memoryview = b""
    considered: int = -1
    """Every id in first..considered that is not in *entries* is not here, as a promise."""
    lac_proof: bytes = b""
    """Header (and trailer) of the frame with the highest LAC known here; empty if none."""
    fenced: bool = False

    def each(self) -> Iterator[tuple[int, memoryview]]:
        """Yield (entry id, frame), without copying."""
        view = memoryview(self.frames)
        start = 0
        for entry_id, length in zip(self.entries, self.lengths, strict=True):
            yield entry_id, view[start : start + length]
            start += length


@dataclass(frozen=True, slots=True)
class HeldQuery:
    """Ask which of the entries first..last the bookie holds, without reading them: up to
    *ranges_max* ranges (at least one)."""

    ledger_id: int
    key: bytes = field(repr=False)
    first: int
    last: int
    ranges_max: int = 4096


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """Ranges of entry ids that are here, inclusive, ascending, with a gap between any two.

    That an entry is here does not say that its bytes are whole: whoever relies on it reads it."""

    status: Status
    """OK; UNKNOWN or IO_ERROR if not even *first* can be denied, with ranges all the same; else why
    there is no answer. A ledger that is not here denies all of first..last."""
    firsts: Sequence[int] = ()
    lasts: Sequence[int] = ()
    considered: int = -1
    """Every id in first..considered that is in no range is not here, as a promise (rule 58)."""
    listed: int = -1
    """All that is here of first..listed is in the ranges: ask again from behind it. At least
    *considered*; of what lies between them and is in no range, nothing is known."""
    is_supported: bool = True
    """False: the bookie's program is older than this question; its status is UNREACHABLE."""

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of each range."""
        return zip(self.firsts, self.lasts, strict=True)


@dataclass(frozen=True, slots=True)
class LacQuery:
    ledger_id: int
    key: bytes = field(repr=False)
    fence: bool = False


@dataclass(frozen=True, slots=True)
class LacAnswer:
    status: Status
    lac_proof: bytes = b""
    fenced: bool = False
    last_entry: int = -1
    """Highest id stored here."""


@dataclass(frozen=True, slots=True)
class InfoAnswer:
    bookie: str
    incarnation: str
    instance: str
    read_only: bool
    identity: str = ""
    """Of the data, as in its cookie."""
    life: int = 0
    """Which start of the data it is."""
