"""Frames on a connection between client and bookie: bytes in, frames out, and back. No I/O.

A frame is a header of `HEADER_BYTES` and a body: a message of `ledger.transport.messages`. The
header has a checksum of its own, so a damaged length is never waited for.

Bodies are received where they stay: `FrameReader.room` is where the next bytes go. A body is held
in pieces that come into being as it arrives, each as large as all that came before it: so a peer
takes what it has sent, and not what it promises. A peer whose bodies came whole is believed as much
again. What is beyond a few KiB is drawn from a budget that all connections share.
"""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from ledger.errors import BadMessage

BLOCK_BYTES: Final = 2624 * 1024
"""What a reader asks for at once, with what an answer has beside frames."""
BLOCK_SHARE_MIN: Final = 2
"""What is smaller than that part of a block has memory of its own size: a view of a little keeps
no more than twice as much."""
BLOCKS_MAX: Final = 8
HEADER: Final = Struct("<IBxxxQ")
"""Bytes of the body, kind, number; `HEADER_CRC` of them follows."""
HEADER_CRC: Final = Struct("<I")
_WHOLE_HEADER: Final = Struct("<IBxxxQI")
HEADER_BYTES: Final = HEADER.size + HEADER_CRC.size
SCRATCH_BYTES: Final = 256 * 1024
"""What is read at once, at most; not more than a piece."""
PIECE_BYTES_MAX: Final = 1024 * 1024
BELIEVED_BYTES: Final = 16 * 1024
"""Held of a body at its first byte, if it promises as much, and drawn from no budget."""
PIECES_BYTES_MAX: Final = 128 * 1024 * 1024
"""Held of all frames that are not whole yet, beyond that."""


class Blocks:
    """Memory to receive large answers to, used again once nobody looks at them any more. No I/O.

    Memory by the megabyte comes fresh from the system each time, and that costs more than all that
    is done with the bytes. An answer's bytes are looked at by reference as long as somebody keeps a
    part of them: so whether a block is free is not counted by anybody here, it is asked of the
    block. A `bytearray` refuses to change its size while there is any view of it.

    Invariants:
        no block is handed out while there is a view of it
        not more than `BLOCKS_MAX` blocks are kept

    Of one event loop.
    """

    def __init__(self) -> None:
        self._blocks: list[bytearray] = []
        self._used = 0
        """How many were in use at once since `rest`."""

    def __len__(self) -> int:
        return len(self._blocks)

    def take(self, size_bytes: int) -> memoryview | None:
        """Return memory of *size_bytes*, with anything in it; None if it is to be had elsewhere."""
        if not BLOCK_BYTES <= size_bytes * BLOCK_SHARE_MIN <= BLOCK_BYTES * BLOCK_SHARE_MIN:
            return None
        for at, block in enumerate(self._blocks):
            if _is_free(block):
                self._used = max(self._used, at + 1)
                return memoryview(block)[:size_bytes]
        if len(self._blocks) == BLOCKS_MAX:
            return None
        block = bytearray(BLOCK_BYTES)
        self._blocks.append(block)
        self._used = len(self._blocks)
        return memoryview(block)[:size_bytes]

    def rest(self) -> None:
        """Let the memory go that was not needed since the last call."""
        del self._blocks[self._used :]
        self._used = 0


def _is_free(block: bytearray) -> bool:
    """Whether there is no view of *block*."""
    try:
        block.pop()
    except BufferError:
        return False
    block.append(0)
    return True


class FrameKind(IntEnum):
    """What a frame is. Its number is that of the batch, or of the question."""

    ADD = 1
    """Batches are numbered from 1 on each connection, without a gap."""
    ADDED = 2
    """Its number is that of the last batch that it answers."""
    READ = 3
    READ_LAC = 4
    READ_HELD = 5
    INFO = 6
    ORDER = 7
    """On the port for operators."""
    COMMAND = 8
    """Between replicas of a state machine: a command for the leader."""
    ANSWER = 32
    CANCEL = 33
    """Nobody waits for the answer any more; without a body."""
    NOT_KNOWN = 34
    """The peer does not know the kind of the question."""


class Frame(NamedTuple):
    kind: int
    number: int
    body: bytes | bytearray | memoryview


def frame_header(kind: FrameKind, number: int, body_bytes: int) -> bytes:
    head = HEADER.pack(body_bytes, kind, number)
    return head + HEADER_CRC.pack(crc32c(head))


class Budget:
    """How many bytes of pieces are held, of all connections together."""

    def __init__(self, bytes_max: int = PIECES_BYTES_MAX) -> None:
        self.left_bytes = self.bytes_max = bytes_max
        self.make_room: Callable[[FrameReader, int], None] | None = None
        """Called before a reader is refused so many bytes; may drop what others hold."""

    def draw(self, reader: "FrameReader", size_bytes: int) -> bool:
        """Return whether there is so much."""
        if size_bytes > self.left_bytes and self.make_room is not None:
            self.make_room(reader, size_bytes)
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        return True


class FrameReader:
    """Puts the frames of one connection together.

    Invariants:
        bytes that were received and are not part of a returned frame: less than a header, or
            the pieces of one body of at most *body_bytes_max* bytes
        pieces are not larger than what came of the body, or of a body before it on the connection,
            unless they are of `BELIEVED_BYTES`
        what is beyond these is paid for by *budget*
    """

    def __init__(
        self,
        scratch: memoryview,
        *,
        body_bytes_max: int,
        budget: Budget,
        piece_bytes_max: int | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        """*scratch* may be shared by all connections of a thread: nothing stays in it.

        *piece_bytes_max*: so much is held of a body at its first byte, if the peer is believed; by
        default it is not, beyond `BELIEVED_BYTES`. *blocks*: where bodies of one piece are
        received, if they have room."""
        self._blocks = blocks
        self._piece_bytes_max = piece_bytes_max or PIECE_BYTES_MAX
        self._believed_bytes = piece_bytes_max or BELIEVED_BYTES
        assert len(scratch) <= self._piece_bytes_max
        self.progress = 0
        """Grows with each piece that begins and each frame that ends."""
        self.scratch = scratch
        self.body_bytes_max = body_bytes_max
        self._budget = budget
        self._head = bytearray()
        self._kind = self._number = self._left_bytes = 0
        self.pieces: list[bytearray | memoryview] = []
        self._filled_bytes = 0
        self.paid_bytes = 0
        """Drawn from the budget."""

    @property
    def is_under_way(self) -> bool:
        """Whether a frame has begun and is not whole."""
        return bool(self._head or self.pieces)

    def receive_at_most(self, size_bytes: int) -> None:
        """Let no more come at once than so much, from a peer that sends small frames."""
        self.scratch = self.scratch[:size_bytes]

    def room(self) -> memoryview:
        """Return where the next bytes are to be written; call `take` then. That is `scratch`, if
        no piece is begun."""
        if not self.pieces:
            return self.scratch
        return memoryview(self.pieces[-1])[self._filled_bytes :]

    def take(self, count: int) -> list[Frame]:
        """Return the frames that are whole now that *count* bytes were written to `room`.

        Raises `BadMessage`; the connection cannot be used any more then."""
        frames: list[Frame] = []
        if self.pieces:
            self._filled_bytes += count
            self._grown(frames)
            return frames
        data, at = self.scratch[:count], 0
        if count >= HEADER_BYTES and not self._head:  # one small frame, as it mostly is
            head = bytes(data[:HEADER_BYTES])
            length, kind, number, crc = _WHOLE_HEADER.unpack(head)
            if length == count - HEADER_BYTES <= self.body_bytes_max and crc == crc32c(
                head[: HEADER.size]
            ):
                self.progress += 1
                return [Frame(kind, number, bytes(data[HEADER_BYTES:]))]
        if self._head:
            at = min(HEADER_BYTES - len(self._head), count)
            self._head += data[:at]
            if len(self._head) < HEADER_BYTES:
                return frames
            head = bytes(self._head)
            self._head.clear()
            at = self._begin(head, data, at, frames)
        while count - at >= HEADER_BYTES:
            end = at + HEADER_BYTES
            at = self._begin(bytes(data[at:end]), data, end, frames)
        self._head += data[at:]
        return frames

    def drop(self) -> None:
        """Give back what is held."""
        self._budget.left_bytes += self.paid_bytes
        self.paid_bytes = 0
        self.pieces.clear()
        self._head.clear()

    def _begin(self, head: bytes, data: memoryview, at: int, frames: list[Frame]) -> int:
        """Take the frame of *head* from *data*, as far as it is there; return where that ends."""
        if crc32c(head[: HEADER.size]) != HEADER_CRC.unpack_from(head, HEADER.size)[0]:
            raise BadMessage("Frame", "the checksum of its header is wrong")
        length: int
        length, kind, number = HEADER.unpack_from(head)
        if length > self.body_bytes_max:
            reason = f"it has {length} bytes, and may have {self.body_bytes_max}"
            raise BadMessage("Frame", reason)
        end = at + length
        self.progress += 1
        if end <= len(data):
            frames.append(Frame(kind, number, bytes(data[at:end])))
            return end
        self._kind, self._number, self._left_bytes = kind, number, length
        here = len(data) - at
        self._new_piece(here)
        self.pieces[-1][:here] = data[at:]
        self._filled_bytes = here
        return len(data)

    def _grown(self, frames: list[Frame]) -> None:
        piece_bytes = len(self.pieces[-1])
        if self._filled_bytes < piece_bytes:
            return
        self._left_bytes -= piece_bytes
        came_bytes = sum(map(len, self.pieces))
        if self._left_bytes:
            self._new_piece(came_bytes)
            return
        self._believed_bytes = max(self._believed_bytes, min(came_bytes, self._piece_bytes_max))
        body = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.drop()
        self.progress += 1
        frames.append(Frame(self._kind, self._number, body))

    def _new_piece(self, came_bytes: int) -> None:
        """*came_bytes*: of the body, up to now; at its beginning they are to find room here."""
        believed_bytes = max(self._believed_bytes, came_bytes * (1 if self.pieces else 2))
        size_bytes = min(self._left_bytes, self._piece_bytes_max, believed_bytes)
        if self.pieces or size_bytes > BELIEVED_BYTES:
            if not self._budget.draw(self, size_bytes):
                raise BadMessage("Frame", "there is no room for large messages; send it again")
            self.paid_bytes += size_bytes
        piece = None
        if self._blocks is not None and not self.pieces and size_bytes == self._left_bytes:
            piece = self._blocks.take(size_bytes)
        self.pieces.append(bytearray(size_bytes) if piece is None else piece)
        self._filled_bytes = 0
        self.progress += 1
