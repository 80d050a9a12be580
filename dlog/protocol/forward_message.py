"""Messages of replicas that forward commands to their leader: bytes and values. Pure.

Before frames the sender says hello, and which life of which log it means; the leader's replica
answers. Neither sends more before it has heard the other. All integers are little endian:

    8 bytes  "DLOGCMDS"
    u16      version, 1; in an answer 0: refused
    u16      bytes of the text: the log's incarnation; in an answer why it refuses
             the text, UTF-8
    u32      CRC-32C of all before it

Then frames of `ledger.transport.framing`: COMMAND and, with the same number, ANSWER. A body is the
CRC-32C (u32) of a message of replica.proto, and the message.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google_crc32c import value as crc32c

from dlog.errors import (
    CommandOutcomeUnknown,
    DamagedSnapshot,
    ForwardRefused,
    InvalidResult,
    NotLeader,
    RecordTooLarge,
    RequestForgotten,
    encodable,
)
from dlog.protocol.client_table import REQUESTS_MAX, decode_result, encode_result
from dlog.protocol.command import VERSION_MAX, RequestId
from dlog.wire import replica_pb2 as pb
from ledger.errors import BadMessage, InvalidValue, LogError, TooManyPending

VERSION: Final = 1
ENDPOINT_BYTES_MAX: Final = 300
TIMEOUT_MS_MAX: Final = 2**32 - 1
_MAGIC: Final = b"DLOGCMDS"
_HELLO: Final = struct.Struct("<8sHH")
_CRC: Final = struct.Struct("<I")
_TEXT_BYTES_MAX: Final = 512
_DENIED: Final = "denied"
_FAILED: Final = "failed"
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class ForwardedCommand:
    request: RequestId
    payload: bytes
    version: int
    """Of the application that submitted it."""
    timeout_ms: int
    """How long the sender waits."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The sender has no grant to write the log."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The leader's replica failed in another way. Whether the command was applied is not known."""

    reason: str


Reply = object
"""A result, a `LogError` that names what became of the command, `Denied` or `Failed`."""


def encode_hello(incarnation: str) -> bytes:
    return _greeting(VERSION, incarnation)


def encode_welcome() -> bytes:
    return _greeting(VERSION, "")


def encode_refusal(reason: str) -> bytes:
    return _greeting(0, reason)


def decode_hello(received: bytes) -> str | None:
    """Return the incarnation that the sender means; None: more follows. Raises `BadMessage`."""
    greeting = _parse_greeting("ForwardHello", received)
    if greeting is None:
        return None
    version, incarnation = greeting
    if version != VERSION:
        raise BadMessage("ForwardHello", f"version {version}; this program speaks {VERSION}")
    return incarnation


def decode_answer(received: bytes) -> str | None:
    """Return why the sender is refused, "": it is not; None: more follows. Raises `BadMessage`."""
    greeting = _parse_greeting("ForwardWelcome", received)
    if greeting is None:
        return None
    version, reason = greeting
    if version not in (0, VERSION):
        raise BadMessage("ForwardWelcome", f"version {version}; this program speaks {VERSION}")
    return "" if version else reason or "no reason was given"


def _greeting(version: int, text: str) -> bytes:
    encoded = text.encode(errors="replace")[:_TEXT_BYTES_MAX]
    head = _HELLO.pack(_MAGIC, version, len(encoded)) + encoded
    return head + _CRC.pack(crc32c(head))


def _parse_greeting(name: str, received: bytes) -> tuple[int, str] | None:
    begin = received[: len(_MAGIC)]
    if begin != _MAGIC[: len(begin)]:
        raise BadMessage(name, "the other end is no replica")
    if len(received) < _HELLO.size:
        return None
    _, version, size = _HELLO.unpack_from(received)
    if size > _TEXT_BYTES_MAX:
        raise BadMessage(name, f"a text in it has more than {_TEXT_BYTES_MAX} bytes")
    end = _HELLO.size + size
    if len(received) < end + _CRC.size:
        return None
    if len(received) > end + _CRC.size:
        raise BadMessage(name, "more follows than may")
    if crc32c(received[:end]) != _CRC.unpack_from(received, end)[0]:
        raise BadMessage(name, "its checksum is wrong")
    # A text that was cut at its limit may end within a letter.
    return version, received[_HELLO.size : end].decode(errors="replace")


def encode_command(command: ForwardedCommand) -> bytes:
    return _body(
        pb.ForwardedCommand(
            client=command.request.client,
            number=command.request.number,
            version=command.version,
            timeout_ms=command.timeout_ms,
            payload=command.payload,
        )
    )


def decode_command(body: bytes) -> ForwardedCommand:
    """Raises `BadMessage`."""
    message = _parsed(pb.ForwardedCommand, body)
    try:
        request = RequestId(message.client, message.number)
    except InvalidValue as error:
        raise BadMessage("ForwardedCommand", str(error)) from error
    if message.version > VERSION_MAX:
        raise BadMessage("ForwardedCommand", f"version {message.version} of an application")
    return ForwardedCommand(request, message.payload, message.version, message.timeout_ms)


def encode_reply(reply: Reply) -> bytes:
    """Raises `InvalidResult` for a result that the table of clients would not keep."""
    message = pb.ForwardReply()
    match reply:
        case Denied():
            message.error = _DENIED
        case Failed(reason):
            message.error = _FAILED
            message.texts.append(encodable(reason[:_TEXT_BYTES_MAX]))
        case LogError():
            known = _ERRORS.get(type(reply).__name__)
            message.error = _FAILED if known is None else type(reply).__name__
            texts, numbers = ((str(reply),), ()) if known is None else known.parts(reply)
            message.texts.extend(encodable(text[: 4 * _TEXT_BYTES_MAX]) for text in texts)
            message.numbers.extend(numbers)
        case _:
            message.result = encode_result(reply)
    return _body(message)


def decode_reply(body: bytes, *, log: str, request: RequestId) -> Reply:
    """Return what became of *request*. Raises `BadMessage`."""
    message = _parsed(pb.ForwardReply, body)
    texts, numbers = tuple(message.texts), tuple(message.numbers)
    if message.error == _DENIED:
        return Denied()
    try:
        if message.error == _FAILED:
            [reason] = texts
            return Failed(reason)
        if message.error:
            return _ERRORS[message.error].make(log, request, texts, numbers)
        return decode_result(message.result)
    except InvalidResult as error:
        return error
    except (KeyError, ValueError, IndexError, DamagedSnapshot) as error:
        raise BadMessage("ForwardReply", f"{message.error or 'result'}: {error}") from error


def _body(message: Message) -> bytes:
    encoded = message.SerializeToString(deterministic=True)
    return _CRC.pack(crc32c(encoded)) + encoded


def _parsed(kind: type[M], body: bytes) -> M:
    name = kind.DESCRIPTOR.name
    if len(body) < _CRC.size or crc32c(body[_CRC.size :]) != _CRC.unpack_from(body)[0]:
        raise BadMessage(name, "its checksum is wrong")
    try:
        return kind.FromString(body[_CRC.size :])
    except DecodeError as error:
        raise BadMessage(name, "it cannot be parsed") from error


Texts = tuple[str, ...]
Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _ErrorForm:
    """How an error travels: its texts and numbers, and what is made of them."""

    parts: Callable[[LogError], tuple[Texts, Numbers]]
    make: Callable[[str, RequestId, Texts, Numbers], LogError]


def _not_leader(error: LogError) -> tuple[Texts, Numbers]:
    assert isinstance(error, NotLeader)
    return (error.leader, error.address), (error.epoch,)


def _unknown(error: LogError) -> tuple[Texts, Numbers]:
    assert isinstance(error, CommandOutcomeUnknown)
    return (error.reason,), ()


def _pending(error: LogError) -> tuple[Texts, Numbers]:
    assert isinstance(error, TooManyPending)
    return (), (error.pending_bytes, error.pending_bytes_max)


def _too_large(error: LogError) -> tuple[Texts, Numbers]:
    assert isinstance(error, RecordTooLarge)
    return (), (error.size_bytes, error.size_bytes_max)


def _forgotten(error: LogError) -> tuple[Texts, Numbers]:
    assert isinstance(error, RequestForgotten)
    return (), (error.floor,)


def _invalid_result(error: LogError) -> tuple[Texts, Numbers]:
    assert isinstance(error, InvalidResult)
    return (error.result_text, error.reason), ()


def _refused(error: LogError) -> tuple[Texts, Numbers]:
    assert isinstance(error, ForwardRefused)
    return (error.leader, error.reason), ()


_ERRORS: Final = {
    "NotLeader": _ErrorForm(
        _not_leader, lambda log, _, texts, numbers: NotLeader(log, texts[0], texts[1], numbers[0])
    ),
    "CommandOutcomeUnknown": _ErrorForm(
        _unknown, lambda log, _, texts, __: CommandOutcomeUnknown(log, texts[0])
    ),
    "TooManyPending": _ErrorForm(
        _pending, lambda _, __, ___, numbers: TooManyPending(numbers[0], numbers[1])
    ),
    "RecordTooLarge": _ErrorForm(
        _too_large, lambda log, _, __, numbers: RecordTooLarge(log, numbers[0], numbers[1])
    ),
    "RequestForgotten": _ErrorForm(
        _forgotten,
        lambda log, request, _, numbers: RequestForgotten(
            log, request.client, request.number, numbers[0]
        ),
    ),
    "InvalidResult": _ErrorForm(
        _invalid_result, lambda _, __, texts, ___: InvalidResult(texts[0], texts[1])
    ),
    "ForwardRefused": _ErrorForm(
        _refused, lambda log, _, texts, __: ForwardRefused(log, texts[0], texts[1])
    ),
}
"""By the name of the class."""


class RequestNumbers:
    """Gives requests to commands that are forwarded without one, so that each can be repeated.

    The table of clients keeps the results of `REQUESTS_MAX` numbers of a client. So no number is
    given while one that is `REQUESTS_MAX` smaller, of the same client, may still be repeated; then
    another client is used."""

    def __init__(self, prefix: str) -> None:
        """*prefix*: of the names of clients that nobody else uses."""
        self._prefix = prefix
        self._next: list[int] = []
        """Of each client, the number that it gives next."""
        self._open: list[dict[int, None]] = []
        """Of each client, the numbers that may be repeated, in order."""

    def take(self) -> RequestId:
        """Return a request that was not given before; call `release` in the end."""
        for client, numbers in enumerate(self._open):
            oldest = next(iter(numbers), self._next[client])
            if self._next[client] - oldest < REQUESTS_MAX:
                return self._given(client)
        self._next.append(0)
        self._open.append({})
        return self._given(len(self._next) - 1)

    def release(self, request: RequestId) -> None:
        """The request is not repeated any more."""
        del self._open[int(request.client.rpartition("-")[2])][request.number]

    def _given(self, client: int) -> RequestId:
        number = self._next[client]
        self._next[client] += 1
        self._open[client][number] = None
        return RequestId(f"{self._prefix}-{client}", number)
