"""The envelope of every message between client and bookie: message `Checked` of bookie.proto, put
together and taken apart without copies, and its one checksum.

Frames are nearly all of what travels. Protobuf copies them three times on the way out (joined,
set, serialised) and twice on the way in; with megabytes a second that is most of what the wire
costs a process. Here they follow a head, and are taken apart by reference. What is written
is what protobuf would write, and whatever protobuf may write is read.

Frames carry checksums of their own; this one is for all the rest: ids, keys, flags, statuses,
promises. A key that was damaged on its way would else create a ledger under a wrong key, a
flag would let a normal add pass a fence, and an answer would promise what nobody said.

The checksum is over the bytes of the serialised message, never over its fields: so it costs
nothing per entry, and a bookie and a client need not agree on how a message is serialised.
Which message it is and how long the frames are is part of it: a damaged envelope, or one that
lost a part, never passes for a message whose fields have their defaults. So is the request
that is answered: what went astray never passes for the answer to another one.
"""

import struct
from struct import Struct
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from ledger.errors import BadMessage, DamagedMessage
from ledger.wire import bookie_pb2 as pb

_CRC: Final = Struct("<BI")
_SHORT: Final = Struct("<BIBB")
"""What is before a short message without frames: tag, crc, tag, bytes."""
_CRC_TAG: Final = pb.Checked.CRC_FIELD_NUMBER << 3 | 5
_MESSAGE_TAG: Final = pb.Checked.MESSAGE_FIELD_NUMBER << 3 | 2
_FRAMES_TAG: Final = pb.Checked.FRAMES_FIELD_NUMBER << 3 | 2
_VARINT_BYTES_MAX: Final = 5
_VARINT_MORE: Final = 0x80
"""Set in a byte of a varint that another one follows."""
Buffer = bytes | memoryview
Received = bytes | bytearray | memoryview
"""A message as it came; nobody changes it."""
_LENGTH: Final = struct.Struct("<Q")
_Kind = TypeVar("_Kind", bound=Message)


def encode_head(crc: int, message: bytes, frames_bytes: int) -> bytes:
    """Return a `Checked` of *crc*, *message* and so many bytes of frames, which are to follow."""
    head = bytearray()
    if crc:
        head += _CRC.pack(_CRC_TAG, crc)
    if message:
        head.append(_MESSAGE_TAG)
        if len(message) < _VARINT_MORE:
            head.append(len(message))
        else:
            _add_varint(head, len(message))
        head += message
    if frames_bytes:
        head.append(_FRAMES_TAG)
        while frames_bytes >= _VARINT_MORE:  # as `_add_varint`, without a call of its own
            head.append(frames_bytes & 0x7F | _VARINT_MORE)
            frames_bytes >>= 7
        head.append(frames_bytes)
    return bytes(head)


def decode_envelope(received: Received) -> tuple[int, bytes, Buffer]:
    """Return crc, message and frames of a `Checked`; the frames are a view of *received*.

    Raises `google.protobuf.message.DecodeError`."""
    at, end, crc, message = 0, len(received), 0, b""
    frames: Buffer = b""
    # As it is usually: each field at most once, in order.
    if end >= _CRC.size and received[0] == _CRC_TAG:
        crc = _CRC.unpack_from(received)[1]
        at = _CRC.size
    if at + 1 < end and received[at] == _MESSAGE_TAG:
        start, size_bytes = at + 2, received[at + 1]
        if size_bytes >= _VARINT_MORE:
            start, size_bytes = _varint(received, at + 1)
        at = start + size_bytes
        message = bytes(received[start:at])
    if at + 1 < end and received[at] == _FRAMES_TAG:
        start, size_bytes = at + 2, received[at + 1]
        if size_bytes >= _VARINT_MORE:
            start, size_bytes = _varint(received, at + 1)
        at = start + size_bytes
        frames = memoryview(received)[start:at]
    if at == end:
        return crc, message, frames
    envelope = pb.Checked.FromString(bytes(received))
    return envelope.crc, envelope.message, envelope.frames


def _add_varint(target: bytearray, number: int) -> None:
    while number >= _VARINT_MORE:
        target.append(number & 0x7F | _VARINT_MORE)
        number >>= 7
    target.append(number)


def _varint(data: Received, at: int) -> tuple[int, int]:
    """Return where the number at *at* ends, and the number; past the end of *data* if there is
    none."""
    number = shift = 0
    for byte in data[at : at + _VARINT_BYTES_MAX]:
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < _VARINT_MORE:
            return at, number
        shift += 7
    return len(data), 1


def checked(message: Message, *frames: Buffer, request: Received = b"") -> bytes:
    """Return what travels: *message* and *frames* under one checksum.

    *request*: what travelled the other way, if this is the one answer to it."""
    body = message.SerializeToString()
    frames_bytes = sum(map(len, frames))
    covered = _LENGTH.pack(frames_bytes) + request + body
    crc = crc32c_extend(_CRC_OF_NAME[type(message)], covered)
    if crc and not frames and 0 < len(body) < _VARINT_MORE:  # as acks are
        return _SHORT.pack(_CRC_TAG, crc, _MESSAGE_TAG, len(body)) + body
    head = encode_head(crc, body, frames_bytes)
    return b"".join((head, *frames)) if frames else head


def checked_parts(message: Message, *frames: Buffer, request: Received = b"") -> tuple[Buffer, ...]:
    """Return what `checked` does, in parts: *frames* as they are."""
    body = message.SerializeToString()
    frames_bytes = sum(map(len, frames))
    covered = _LENGTH.pack(frames_bytes) + request + body
    crc = crc32c_extend(_CRC_OF_NAME[type(message)], covered)
    return (encode_head(crc, body, frames_bytes), *frames)


def verified(
    kind: type[_Kind], received: Received, *, request: Received = b""
) -> tuple[_Kind, Buffer]:
    """Return message and frames that were given to `checked`, with the same *request*.

    The bytes of the frames are not looked at. Raises `DamagedMessage`; `BadMessage` if the
    other side meant something else by its bytes."""
    crc: int
    body: bytes
    frames: Buffer
    size_bytes = len(received) - _SHORT.size
    if 0 < size_bytes < _VARINT_MORE and (
        (fields := _SHORT.unpack_from(received))[::2] == (_CRC_TAG, _MESSAGE_TAG)
        and fields[3] == size_bytes
    ):
        crc, body, frames = fields[1], bytes(received[_SHORT.size :]), b""  # as acks are
    else:
        try:
            crc, body, frames = decode_envelope(received)
        except DecodeError as error:
            raise DamagedMessage(_name(kind), "it cannot be parsed") from error
    covered = _LENGTH.pack(len(frames)) + request + body
    if crc != crc32c_extend(_CRC_OF_NAME[kind], covered):
        raise DamagedMessage(_name(kind), "its checksum is wrong")
    try:
        return kind.FromString(body), frames
    except DecodeError as error:
        raise BadMessage(_name(kind), "it cannot be parsed") from error


def _name(kind: type[Message]) -> str:
    return kind.DESCRIPTOR.name


_KINDS: Final[tuple[type[Message], ...]] = (
    pb.AddBatch,
    pb.AddAck,
    pb.ReadRequest,
    pb.ReadReply,
    pb.ReadLacRequest,
    pb.ReadLacReply,
    pb.InfoRequest,
    pb.InfoReply,
    pb.ReadHeldRequest,
    pb.ReadHeldReply,
    pb.OrderRequest,
    pb.OrderReply,
)
_CRC_OF_NAME: Final = {kind: int(crc32c(_name(kind).encode())) for kind in _KINDS}
