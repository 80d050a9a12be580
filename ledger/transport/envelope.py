"""The bytes of message `Checked` of bookie.proto, put together and taken apart without copies.

Frames are nearly all of what travels. Protobuf copies them three times on the way out (joined,
set, serialised) and twice on the way in; with megabytes a second that is most of what the wire
costs a process. Here they follow a head, and are taken apart by reference. What is written
is what protobuf would write, and whatever protobuf may write is read.
"""

from struct import Struct
from typing import Final

from ledger.wire import bookie_pb2 as pb

_CRC: Final = Struct("<BI")
_CRC_TAG: Final = pb.Checked.CRC_FIELD_NUMBER << 3 | 5
_MESSAGE_TAG: Final = pb.Checked.MESSAGE_FIELD_NUMBER << 3 | 2
_FRAMES_TAG: Final = pb.Checked.FRAMES_FIELD_NUMBER << 3 | 2
_VARINT_BYTES_MAX: Final = 5

Buffer = bytes | memoryview
Received = bytes | bytearray | memoryview
"""A message as it came; nobody changes it."""


def encode_head(crc: int, message: bytes, frames_bytes: int) -> bytes:
    """Return a `Checked` of *crc*, *message* and so many bytes of frames, which are to follow."""
    head = bytearray()
    if crc:
        head += _CRC.pack(_CRC_TAG, crc)
    if message:
        head.append(_MESSAGE_TAG)
        _add_varint(head, len(message))
        head += message
    if frames_bytes:
        head.append(_FRAMES_TAG)
        _add_varint(head, frames_bytes)
    return bytes(head)


def decode_envelope(received: Received) -> tuple[int, bytes, Buffer]:
    """Return crc, message and frames of a `Checked`; the frames are a view of *received*.

    Raises `google.protobuf.message.DecodeError`."""
    taken = _decode_usual(received)
    if taken is not None:
        return taken
    envelope = pb.Checked.FromString(bytes(received))
    return envelope.crc, envelope.message, envelope.frames


def _decode_usual(received: Received) -> tuple[int, bytes, Buffer] | None:
    """Take apart what has each field at most once, in order; None for everything else."""
    at, crc, message = 0, 0, b""
    frames: Buffer = b""
    if received[at : at + 1] == bytes((_CRC_TAG,)) and len(received) >= _CRC.size:
        _, crc = _CRC.unpack_from(received)
        at = _CRC.size
    if received[at : at + 1] == bytes((_MESSAGE_TAG,)):
        start, size_bytes = _varint(received, at + 1)
        at = start + size_bytes
        message = bytes(memoryview(received)[start:at])
    if received[at : at + 1] == bytes((_FRAMES_TAG,)):
        start, size_bytes = _varint(received, at + 1)
        at = start + size_bytes
        frames = memoryview(received)[start:at]
    return (crc, message, frames) if at == len(received) else None


def _add_varint(target: bytearray, number: int) -> None:
    while number > 0x7F:
        target.append(number & 0x7F | 0x80)
        number >>= 7
    target.append(number)


def _varint(data: Received, at: int) -> tuple[int, int]:
    """Return where the number at *at* ends, and the number; past the end of *data* if there is
    none."""
    number = 0
    for index, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return at + index + 1, number
    return len(data), 1
