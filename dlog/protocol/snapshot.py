"""A snapshot of a replicated state, as a file has it.

All integers are little endian:

    8 bytes  "dlogsnap"
    u16      version of this format, 1
    u32      bytes of the header, u32 its CRC-32C
             the header, JSON: whose state at which offset this is
    u64      bytes of the table of clients
             the table (`dlog.protocol.client_table`)
             what `StateMachine.snapshot` wrote
    u64      bytes of that
    u32      CRC-32C of everything from the table's size to here
    8 bytes  "dlogsend"

So a file that was cut off has no end, and one that was changed another checksum. It is whole or it
is nothing: both are checked before any of it is used.
"""

import io
import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, Self, get_args

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from dlog.errors import DamagedSnapshot, SnapshotTooNew
from ledger.errors import InvalidValue
from ledger.values import Duration, Size, count_of, duration_or_none, size_bytes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

FORMAT_VERSION: Final = 1
HEADER_BYTES_MAX: Final = 64 * 1024
TABLE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of the table of clients, which is smaller in memory."""
PIECE_BYTES: Final = 1 << 20

_MAGIC: Final = b"dlogsnap"
_END: Final = b"dlogsend"
_HEAD: Final = struct.Struct("<8sHII")
_SIZE: Final = struct.Struct("<Q")
_FOOT: Final = struct.Struct("<I8s")
GLANCE_BYTES: Final = _HEAD.size + HEADER_BYTES_MAX
"""`glance_at_snapshot` reads nothing that is further from the beginning and from the end."""
KEEP_MAX: Final = 64

OTHERS_PATIENCE: Final = 2
"""Replicas leave snapshots to those that are to write them, unless none came in this many times."""
SnapshotWriter = Literal["follower", "leader"]

WriteState = Callable[[BinaryIO], object]
"""Writes the state as it was when this was made."""
SnapshotPhase = Literal["writing", "checking", "restoring"]
OnProgress = Callable[[SnapshotPhase, int, int | None], object]
"""Called for each piece, on the thread that works: the phase, bytes done, and of how many (None:
not known yet)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPolicy:
    """When a snapshot is written, by one of the replicas that share a store of them, and what is
    kept. Raises `InvalidValue`."""

    every_records: int = 100_000
    every_bytes: Size = 256 * 1024 * 1024
    """Of commands; 256 MiB."""
    every_s: Duration | None = None
    """Also after so long, if anything was applied; None: whatever time it took."""
    by: SnapshotWriter = "follower"
    """Which replicas write them. The others do so only if none came in twice that time, or after
    twice as many commands: as a leader without followers."""
    keep: int = 2
    """Older ones are removed; 64 at most."""
    truncate: bool = False
    """Whether to truncate the log below the oldest that is kept, as far as no consumer of it, and
    no other store of snapshots, needs what is there."""

    def __post_init__(self) -> None:
        count_of(self.every_records, "every_records", least=1)
        size_bytes(self.every_bytes, "every_bytes", least=1)
        duration_or_none(self.every_s, "every_s")
        count_of(self.keep, "keep", least=1, most=KEEP_MAX)
        if self.by not in get_args(SnapshotWriter):
            raise InvalidValue("by", self.by, f"use {' or '.join(get_args(SnapshotWriter))}")

    def is_due(self, *, records: int, command_bytes: int, since_s: float, leads: bool) -> bool:
        """Return whether to write one now, that much after the last one."""
        times = self._times(leads=leads)
        after_s = self.after_s(leads=leads)
        return records > 0 and (
            records >= times * self.every_records
            or command_bytes >= times * size_bytes(self.every_bytes, "every_bytes")
            or (after_s is not None and since_s >= after_s)
        )

    def after_s(self, *, leads: bool) -> float | None:
        """Return how long after the last one the next is due, however little was applied."""
        every_s = duration_or_none(self.every_s, "every_s")
        return None if every_s is None else every_s * self._times(leads=leads)

    def _times(self, *, leads: bool) -> int:
        return 1 if leads is (self.by == "leader") else OTHERS_PATIENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    log: str
    incarnation: str
    """Of the log: one that was deleted and created again has another state."""
    offset: int
    """Of the first record that is not in the state."""
    txid: int | None = None
    """The last one of the records that are; None: they have none, as those that replicas append."""
    epoch: int
    """Of the last leader below it; 0: there was none."""
    leader: str
    address: str
    endpoint: str = ""
    """Of that leader (`LeaderMark`)."""
    version: int
    """Of the application that wrote it (`StateMachine.version`)."""
    written_ms: int
    """When, for people."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Raises `DamagedSnapshot`."""
        try:
            fields = json.loads(encoded)
            header = cls(**fields)
        except (ValueError, TypeError) as error:
            raise DamagedSnapshot(f"its header: {error}") from error
        numbers = (header.offset, header.epoch, header.version, header.written_ms)
        leader = (header.leader, header.address, header.endpoint)
        texts = (header.log, header.incarnation, *leader)
        if not all(type(each) is int and each >= 0 for each in numbers):
            raise DamagedSnapshot(f"its header has numbers {numbers}")
        if header.txid is not None and type(header.txid) is not int:
            raise DamagedSnapshot(f"its header has the txid {header.txid!r}")
        if not all(type(each) is str for each in texts):
            raise DamagedSnapshot(f"its header has texts {texts}")
        return header


def no_progress(_phase: SnapshotPhase, _done_bytes: int, _total_bytes: int | None) -> None:
    """Nobody wants to know."""


def write_snapshot(
    out: BinaryIO,
    header: SnapshotHeader,
    table: Iterable[bytes],
    write_state: WriteState,
    on_progress: OnProgress = no_progress,
) -> None:
    encoded = header.encode()
    assert len(encoded) <= HEADER_BYTES_MAX, "names and addresses are short"
    out.write(_HEAD.pack(_MAGIC, FORMAT_VERSION, len(encoded), crc32c(encoded)))
    out.write(encoded)
    checked = _CheckedWriter(out, on_progress)
    whole = b"".join(table)
    checked.write(_SIZE.pack(len(whole)))
    checked.write(whole)
    before = checked.size_bytes
    buffered = io.BufferedWriter(checked, PIECE_BYTES)
    write_state(buffered)
    buffered.flush()
    checked.write(_SIZE.pack(checked.size_bytes - before))
    out.write(_FOOT.pack(checked.crc, _END))
    buffered.detach()


def read_header(source: BinaryIO) -> SnapshotHeader:
    """Return the header that *source*, at its start, begins with. Raises `DamagedSnapshot`,
    `SnapshotTooNew`."""
    try:
        magic, version, size, crc = _HEAD.unpack(source.read(_HEAD.size))
    except struct.error as error:
        raise DamagedSnapshot(f"its beginning: {error}") from error
    if magic != _MAGIC or version == 0:
        raise DamagedSnapshot("it does not begin as one")
    if version > FORMAT_VERSION:
        raise SnapshotTooNew("format", version, FORMAT_VERSION)
    if size > HEADER_BYTES_MAX:
        raise DamagedSnapshot(f"a header of {size} bytes")
    encoded = source.read(size)
    if len(encoded) != size or crc32c(encoded) != crc:
        raise DamagedSnapshot("its header has another checksum")
    return SnapshotHeader.decode(encoded)


def check_snapshot(
    source: BinaryIO, size_bytes: int, on_progress: OnProgress = no_progress
) -> SnapshotHeader:
    """Return the header of *source*, which has *size_bytes* and is read as a whole. Raises
    `DamagedSnapshot`, `SnapshotTooNew`."""
    header = read_header(source)
    left, crc = size_bytes - source.tell() - _FOOT.size, 0
    if left < 2 * _SIZE.size:
        raise DamagedSnapshot("it is cut off")
    while left:
        piece = source.read(min(left, PIECE_BYTES))
        if not piece:
            raise DamagedSnapshot("it is cut off")
        crc = crc32c_extend(crc, piece)
        left -= len(piece)
        on_progress("checking", size_bytes - left, size_bytes)
    if source.read(_FOOT.size) != _FOOT.pack(crc, _END):
        raise DamagedSnapshot("its end is missing, or it has another checksum")
    return header


def glance_at_snapshot(source: BinaryIO, size_bytes: int) -> SnapshotHeader:
    """Return the header of *source*, whose beginning and end are read, and nothing between. Raises
    `DamagedSnapshot`, `SnapshotTooNew`."""
    header = read_header(source)
    if size_bytes - source.tell() < 2 * _SIZE.size + _FOOT.size:
        raise DamagedSnapshot("it is cut off")
    source.seek(size_bytes - len(_END))
    if source.read(len(_END)) != _END:
        raise DamagedSnapshot("its end is missing")
    return header


def read_snapshot(
    source: BinaryIO, size_bytes: int, on_progress: OnProgress = no_progress
) -> tuple[SnapshotHeader, bytes, BinaryIO]:
    """Return header, table and state of *source*, which `check_snapshot` found whole.

    It may have been damaged since: reading the state to its end raises `DamagedSnapshot` then, and
    so does this."""
    header = read_header(source)
    size = source.read(_SIZE.size)
    table_bytes = int.from_bytes(size, "little")
    state_bytes = size_bytes - source.tell() - table_bytes - _SIZE.size - _FOOT.size
    if table_bytes > TABLE_BYTES_MAX or state_bytes < 0:
        raise DamagedSnapshot(f"a table of {table_bytes} bytes")
    table = source.read(table_bytes)
    section = _Section(source, state_bytes, crc32c(size + table), on_progress)
    return header, table, io.BufferedReader(section, PIECE_BYTES)


class _CheckedWriter(io.RawIOBase):
    """Counts what is written, and its checksum."""

    def __init__(self, out: BinaryIO, on_progress: OnProgress) -> None:
        self._out, self._on_progress = out, on_progress
        self.size_bytes = 0
        self.crc = 0

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        view = memoryview(data).cast("B")
        for at in range(0, len(view), PIECE_BYTES):
            piece = bytes(view[at : at + PIECE_BYTES])
            self._out.write(piece)
            self.crc = crc32c_extend(self.crc, piece)
            self.size_bytes += len(piece)
            self._on_progress("writing", self.size_bytes, None)
        return len(view)


class _Section(io.RawIOBase):
    """The next *size_bytes* of a file, whose checksum is compared before its last piece is
    given."""

    def __init__(
        self, source: BinaryIO, size_bytes: int, crc: int, on_progress: OnProgress
    ) -> None:
        """*crc*: of what the checksum at the end includes before this."""
        self._source, self._on_progress = source, on_progress
        self._left = self._size_bytes = size_bytes
        self._crc = crc
        self._damage: DamagedSnapshot | None = None
        """Raised by each read from then on, as one error may be caught by the reader."""
        if not size_bytes:
            self._compare()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        room = memoryview(buffer).cast("B")
        wanted = min(len(room), self._left)
        if not wanted:
            if self._damage is not None:
                raise self._damage.with_traceback(None)
            return 0
        piece = self._source.read(wanted)
        if not piece:
            raise DamagedSnapshot("it is cut off")
        room[: len(piece)] = piece
        self._left -= len(piece)
        self._crc = crc32c_extend(self._crc, piece)
        self._on_progress("restoring", self._size_bytes - self._left, self._size_bytes)
        if not self._left:
            self._compare()
        return len(piece)

    def _compare(self) -> None:
        end = self._source.read(_SIZE.size + _FOOT.size)
        crc = crc32c_extend(self._crc, end[: _SIZE.size])
        if end[_SIZE.size :] != _FOOT.pack(crc, _END):
            self._damage = DamagedSnapshot("its end is missing, or it has another checksum")
            raise self._damage
