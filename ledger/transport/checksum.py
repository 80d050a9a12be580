"""One checksum over every message between client and bookie, in one place for both ends.

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
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from ledger.errors import BadMessage, DamagedMessage
from ledger.transport.envelope import Buffer, Received, decode_envelope, encode_head
from ledger.wire import bookie_pb2 as pb

_LENGTH: Final = struct.Struct("<Q")

_Kind = TypeVar("_Kind", bound=Message)


def checked(message: Message, *frames: Buffer, request: Received = b"") -> bytes:
    """Return what travels: *message* and *frames* under one checksum.

    *request*: what travelled the other way, if this is the one answer to it."""
    return b"".join(checked_parts(message, *frames, request=request))


def checked_parts(message: Message, *frames: Buffer, request: Received = b"") -> tuple[Buffer, ...]:
    """Return what `checked` does, in parts: *frames* as they are."""
    body = message.SerializeToString()
    frames_bytes = sum(map(len, frames))
    crc = _crc(type(message), body, frames_bytes, request)
    return (encode_head(crc, body, frames_bytes), *frames)


def verified(
    kind: type[_Kind], received: Received, *, request: Received = b""
) -> tuple[_Kind, Buffer]:
    """Return message and frames that were given to `checked`, with the same *request*.

    The bytes of the frames are not looked at. Raises `DamagedMessage`; `BadMessage` if the
    other side meant something else by its bytes."""
    try:
        crc, body, frames = decode_envelope(received)
    except DecodeError as error:
        raise DamagedMessage(_name(kind), "it cannot be parsed") from error
    if crc != _crc(kind, body, len(frames), request):
        raise DamagedMessage(_name(kind), "its checksum is wrong")
    try:
        return kind.FromString(body), frames
    except DecodeError as error:
        raise BadMessage(_name(kind), "it cannot be parsed") from error


def _crc(kind: type[Message], body: bytes, frames_bytes: int, request: Received) -> int:
    return int(crc32c_extend(_CRC_OF_NAME[kind], _LENGTH.pack(frames_bytes) + request + body))


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
