"""Commands of a replicated state machine, and how they are stored as records of its log.

The value of each record of such a log is an envelope, all integers little endian:

    2 bytes  "dC"
    u8       version of this format, 1
    u8       kind

    kind 1, a command                           kind 2, a mark that a leader begins its epoch with
    u16      version of the application         u64      epoch
    16 bytes proposer, u64 its sequence         3 x u16  bytes of name, address and endpoint
    u64      number of the request                       name, address, endpoint, UTF-8
    u8       bytes of the client, 0: none
             client, UTF-8
             payload

    kind 3, a digest of the leader's state
    u64      offset up to which that was applied
             the digest

A proposer is one replica in one life, and numbers what it appends: so it finds again in the log
what became of an append whose outcome it did not learn. The leader's mark settles the rest:
what an earlier epoch proposed and is not below the mark is not in the log, and never will be.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Self

from dlog.errors import CommandTooNew, DamagedCommand
from ledger.errors import InvalidValue

FORMAT_VERSION: Final = 1
PROPOSER_BYTES: Final = 16
CLIENT_BYTES_MAX: Final = 255
CLIENTS_CHECKED_MAX: Final = 4096
"""Names that need no second look."""
NUMBER_MAX: Final = 2**63 - 1
VERSION_MAX: Final = 2**16 - 1
DIGEST_BYTES_MAX: Final = 64
TEXT_BYTES_MAX: Final = 2000
"""Of a leader's name, of its address, and of its endpoint."""

new_tuple: Final = tuple.__new__
"""Makes a named tuple in a third of the time that its own class needs."""

_MAGIC: Final = b"dC"
_HEAD: Final = struct.Struct("<2sBB")
_COMMAND: Final = struct.Struct("<2sBBH16sQQB")
"""With the head."""
_MARK: Final = struct.Struct("<QHHH")
_DIGEST: Final = struct.Struct("<Q")
_COMMAND_KIND: Final = 1
_MARK_KIND: Final = 2
_DIGEST_KIND: Final = 3
_COMMAND_AT: Final = _COMMAND.size
_MARK_AT: Final = _HEAD.size + _MARK.size
_DIGEST_AT: Final = _HEAD.size + _DIGEST.size


class _Request(NamedTuple):
    client: str
    number: int
    """Grows from request to request of the client."""


class RequestId(_Request):
    """Names one request among all of its client, so that it has one effect. Kept as plain text and
    a plain number, also of a member of an enumeration. Raises `InvalidValue`."""

    __slots__ = ()

    def __new__(cls, client: str, number: int) -> Self:
        # The leader applies this object, its followers what they decode: the two must be the same,
        # so members of enumerations, and other classes made of these two, are not kept.
        if type(client) is not str:
            if not isinstance(client, str):
                raise InvalidValue("client", client, "use text")
            client = str.__str__(client)
        if type(number) is not int:
            if isinstance(number, bool) or not isinstance(number, int):
                raise InvalidValue("number", number, "use a whole number")
            number = int.__index__(number)
        _check_client(client)
        if not 0 <= number <= NUMBER_MAX:
            raise InvalidValue("number", number, "use numbers from 0 to 2**63 - 1")
        return new_tuple(cls, (client, number))


@lru_cache(CLIENTS_CHECKED_MAX)
def _check_client(client: str) -> None:
    """Raises `InvalidValue`. A client has many requests, and its name is checked once."""
    encoded = client.encode(errors="replace")
    if not 1 <= len(encoded) <= CLIENT_BYTES_MAX or not client.isprintable():
        reason = f"use 1 to {CLIENT_BYTES_MAX} bytes of printable text"
        raise InvalidValue("client", client, reason)


class Command(NamedTuple):  # tuples are made in a fraction of the time
    """One command, as `StateMachine.apply` gets it: the same on every replica."""

    payload: bytes
    offset: int
    """Of its record in the log."""
    timestamp_ms: int
    """When its leader took it, by that machine's clock: the only time that `apply` may use."""
    version: int
    """Of the application that submitted it (`StateMachine.version`)."""
    request_id: RequestId | None


class Origin(NamedTuple):
    """The append that brought a command into the log."""

    proposer: bytes
    sequence: int


class CommandEnvelope(NamedTuple):
    payload: bytes
    version: int
    origin: Origin
    request_id: RequestId | None


@dataclass(frozen=True, slots=True)
class LeaderMark:
    """The first record of a leader: who it is, and that earlier epochs append nothing any more."""

    epoch: int
    """Of the log (`Log.epoch`)."""
    name: str
    address: str
    """Where clients reach it; empty: it did not say."""
    endpoint: str = ""
    """Where it takes commands of other replicas (`dlog.aio.forward`); empty: nowhere."""


@dataclass(frozen=True, slots=True)
class StateDigest:
    """A hash of the state in which everything below *offset* was applied."""

    offset: int
    digest: bytes


def encode_command(envelope: CommandEnvelope) -> bytes:
    payload, version, (proposer, sequence), request = envelope
    client, number = b"", 0
    if request is not None:
        client, number = request.client.encode(), request.number
    head = _COMMAND.pack(
        _MAGIC, FORMAT_VERSION, _COMMAND_KIND, version, proposer, sequence, number, len(client)
    )
    return head + client + payload


def encode_mark(mark: LeaderMark) -> bytes:
    texts = [text.encode() for text in (mark.name, mark.address, mark.endpoint)]
    assert max(map(len, texts)) <= TEXT_BYTES_MAX, "checked by whoever gave them"
    head = _HEAD.pack(_MAGIC, FORMAT_VERSION, _MARK_KIND)
    return b"".join((head, _MARK.pack(mark.epoch, *map(len, texts)), *texts))


def check_digest(digest: object) -> None:
    """Raises `InvalidValue`."""
    if not isinstance(digest, bytes) or not 1 <= len(digest) <= DIGEST_BYTES_MAX:
        reason = f"return 1 to {DIGEST_BYTES_MAX} bytes, or None"
        raise InvalidValue("digest", digest, reason)


def encode_digest(digest: StateDigest) -> bytes:
    check_digest(digest.digest)
    head = _HEAD.pack(_MAGIC, FORMAT_VERSION, _DIGEST_KIND)
    return head + _DIGEST.pack(digest.offset) + digest.digest


def decode(value: bytes, *, log: str, offset: int) -> CommandEnvelope | LeaderMark | StateDigest:
    """Return what the record at *offset* says. Raises `DamagedCommand`, `CommandTooNew`."""
    try:
        magic, version, kind = _HEAD.unpack_from(value)
        if magic != _MAGIC:
            raise DamagedCommand(log, offset, "it does not begin as one")
        if version > FORMAT_VERSION:
            raise CommandTooNew(log, offset, "format", version, FORMAT_VERSION)
        if version == FORMAT_VERSION and kind == _COMMAND_KIND:
            return _decode_command(value)
        if version == FORMAT_VERSION and kind == _MARK_KIND:
            return _decode_mark(value)
        if version == FORMAT_VERSION and kind == _DIGEST_KIND:
            return _decode_digest(value)
    except (struct.error, ValueError, InvalidValue) as error:
        raise DamagedCommand(log, offset, str(error)) from error
    raise DamagedCommand(log, offset, f"there is no kind {kind} in version {version}")


def _decode_command(value: bytes) -> CommandEnvelope:
    _, _, _, version, proposer, sequence, number, client_bytes = _COMMAND.unpack_from(value)
    payload_at = _COMMAND_AT + client_bytes
    if payload_at > len(value):
        raise ValueError("it ends within its client")
    request = None
    if client_bytes:
        request = RequestId(value[_COMMAND_AT:payload_at].decode(), number)
    elif number:
        raise ValueError("it has a number and no client")
    return CommandEnvelope(value[payload_at:], version, Origin(proposer, sequence), request)


def _decode_mark(value: bytes) -> LeaderMark:
    epoch, *sizes = _MARK.unpack_from(value, _HEAD.size)
    if max(sizes) > TEXT_BYTES_MAX:
        raise ValueError(f"its texts are longer than {TEXT_BYTES_MAX} bytes")
    if _MARK_AT + sum(sizes) != len(value):
        raise ValueError("it is not as long as its texts")
    texts, at = [], _MARK_AT
    for size in sizes:
        texts.append(value[at : at + size].decode())
        at += size
    return LeaderMark(epoch, *texts)


def _decode_digest(value: bytes) -> StateDigest:
    [offset] = _DIGEST.unpack_from(value, _HEAD.size)
    if not 1 <= len(value) - _DIGEST_AT <= DIGEST_BYTES_MAX:
        raise ValueError(f"its digest has not 1 to {DIGEST_BYTES_MAX} bytes")
    return StateDigest(offset, value[_DIGEST_AT:])
