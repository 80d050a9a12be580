"""The handshake of client and bookie, before the first frame: bytes in, values out. No I/O.

The client says hello: which versions of the wire it speaks, which bookie it means, what the
connection is for. The bookie answers with a welcome that names itself, or with a refusal: a
sentence for a person. Neither sends more before it has heard the other, so nothing but a few
hundred bytes is ever read of a stranger.

A name is no proof: other clusters have bookies of the same name, and an address is used again. From
version 2 on the hello says which bookie of which cluster is meant (`BookieIdentity`), the welcome
which one answers, and both ends compare. Version 1 is for clusters below level `IDENTITIES`.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

from google_crc32c import value as crc32c

from ledger.errors import BadMessage
from ledger.ids import BookieIdentity

VERSION_MIN: Final = 1
VERSION_MAX: Final = 2
IDENTIFIED: Final = 2
"""From this version on both ends say whose they are."""
NEEDED: Final = "version 0.1.0 of dlog or later"
"""What speaks these versions."""

_MAGIC: Final = b"DLOGWIRE"
_HELLO: Final = Struct("<8sHHBxH")  # magic, lowest, highest version, purpose, bytes of the name
_ANSWER: Final = Struct("<8sHHHxx")  # magic, version or 0, bytes of two texts
_CRC: Final = Struct("<I")
_TEXT_BYTES_MAX: Final = 512
HANDSHAKE_BYTES_MAX: Final = _ANSWER.size + 2 * _TEXT_BYTES_MAX + _CRC.size
"""Nothing that is said in a handshake is longer."""

_ANOTHER: Final = "another"

_STRANGERS: Final = (
    (b"PRI * HTTP/2.0", "HTTP/2, as gRPC does, and clients of dlog before its own wire"),
    (b"\x16\x03", "TLS"),
    (b"GET ", "HTTP"),
    (b"POST ", "HTTP"),
    (b"HEAD ", "HTTP"),
    (b"HTTP/", "HTTP"),
    (b"\x15\x03", "TLS"),
    (b"\0\0", "HTTP/2, as gRPC does, and bookies of dlog before its own wire"),
)
_GOAWAY: Final = Struct(">BHBBIII")


class Purpose(IntEnum):
    ADDS = 1
    ASKS = 2
    """Reads, and what a bookie is asked besides."""
    ORDERS = 3
    """On the port for operators; whichever bookie is there may be meant."""


@dataclass(frozen=True, slots=True)
class Hello:
    purpose: Purpose
    bookie: str
    """The one that is meant."""
    lowest: int = VERSION_MIN
    highest: int = VERSION_MIN
    meant: BookieIdentity | None = None
    """Which one of that name; None: the client does not say."""


@dataclass(frozen=True, slots=True)
class Welcome:
    version: int
    bookie: str
    incarnation: str
    """Which start of the bookie answers (rule 75)."""
    identity: BookieIdentity | None = None
    """Whose answers these are; None in version 1."""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    is_another: bool = False
    """Whether another bookie is here than was meant."""


Answer = Welcome | Refusal


def hello_to(purpose: Purpose, bookie: str, meant: BookieIdentity | None) -> Hello:
    """Return what a client says that means *bookie*, and that one of the name which is *meant*.

    None: the bookie is of a release that does not say whose it is."""
    if meant is None:
        return Hello(purpose, bookie)
    return Hello(purpose, bookie, IDENTIFIED, VERSION_MAX, meant)


def encode_hello(hello: Hello) -> bytes:
    name = _joined(hello.bookie, hello.meant).encode()[:_TEXT_BYTES_MAX]
    head = _HELLO.pack(_MAGIC, hello.lowest, hello.highest, hello.purpose, len(name))
    return _sealed(head + name)


def decode_hello(received: bytes) -> Hello | None:
    """Return what a client says, None if more must follow.

    Raises `BadMessage` if it is no client, or says more than it may before it is answered."""
    _check_magic("Hello", received)
    if len(received) < _HELLO.size:
        return None
    _, lowest, highest, purpose, name_bytes = _HELLO.unpack_from(received)
    texts = _texts("Hello", received, _HELLO.size, (name_bytes,))
    if texts is None:
        return None
    if purpose not in Purpose._value2member_map_:
        raise BadMessage("Hello", f"purpose {purpose} is not known here")
    name, meant = _parted("Hello", texts[0])
    return Hello(Purpose(purpose), name, lowest, highest, meant)


def answer_to(
    hello: Hello,
    *,
    bookie: str,
    incarnation: str,
    identity: BookieIdentity,
    lowest: int = VERSION_MIN,
) -> Answer:
    """Return what *bookie* of *identity* says to *hello*: the highest version that both speak, from
    *lowest* on, if it is meant."""
    if hello.lowest > VERSION_MAX or hello.highest < lowest:
        spoken = _versions(lowest, VERSION_MAX)
        older = "its client" if hello.highest < lowest else "it"
        return Refusal(
            f"bookie {bookie} speaks {spoken} of the wire and its client "
            f"{_versions(hello.lowest, hello.highest)}; update {older}"
        )
    if hello.bookie != bookie and (hello.bookie or hello.purpose is not Purpose.ORDERS):
        return Refusal(
            f"here is bookie {bookie}, and {hello.bookie or 'nobody'} was meant", is_another=True
        )
    version = min(hello.highest, VERSION_MAX)
    if version < IDENTIFIED:
        return Welcome(version, bookie, incarnation)
    if hello.meant is None:
        return Refusal(f"here is {identity.of(bookie)}, and its client does not say which it means")
    if (reason := identity.why_not(hello.meant, bookie)) is not None:
        return Refusal(reason, is_another=True)
    return Welcome(version, bookie, incarnation, identity)


def why_not_meant(hello: Hello, welcome: Welcome) -> str | None:
    """Return why *welcome* is not of the bookie that *hello* means; None: it is."""
    if hello.bookie not in ("", welcome.bookie):
        return f"here is bookie {welcome.bookie}, and {hello.bookie} was meant"
    if hello.meant is None:
        return None
    if welcome.identity is None:
        return f"bookie {hello.bookie} does not say which cluster it is of; update it"
    return welcome.identity.why_not(hello.meant, hello.bookie)


def encode_answer(answer: Answer) -> bytes:
    if isinstance(answer, Welcome):
        said = _joined(answer.incarnation, answer.identity)
        version, *texts = answer.version, answer.bookie, said
    else:
        version, *texts = 0, answer.reason, _ANOTHER if answer.is_another else ""
    first, second = (text.encode()[:_TEXT_BYTES_MAX] for text in texts)
    return _sealed(_ANSWER.pack(_MAGIC, version, len(first), len(second)) + first + second)


def decode_answer(received: bytes) -> Answer | None:
    """Return what a bookie answers, None if more must follow. Raises `BadMessage`."""
    _check_magic("Welcome", received)
    if len(received) < _ANSWER.size:
        return None
    _, version, *sizes = _ANSWER.unpack_from(received)
    texts = _texts("Welcome", received, _ANSWER.size, sizes)
    if texts is None:
        return None
    if not version:
        return Refusal(texts[0], texts[1] == _ANOTHER)
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise BadMessage("Welcome", f"version {version} was not offered")
    incarnation, identity = _parted("Welcome", texts[1])
    if (identity is None) is (version >= IDENTIFIED):
        raise BadMessage("Welcome", f"version {version} and whose it is do not fit")
    return Welcome(version, texts[0], incarnation, identity)


def farewell(received: bytes) -> bytes:
    """Return what is said to a stranger who began with *received*, in its own words if they are
    known: gRPC shows the sentence to its user."""
    if not received.startswith(b"PRI"):
        return b""
    sentence = f"this bookie speaks the wire of dlog; {NEEDED} is needed".encode()
    settings = _GOAWAY.pack(0, 0, 4, 0, 0, 0, 0)[:9]
    length = 8 + len(sentence)
    return settings + _GOAWAY.pack(0, length, 7, 0, 0, 0, 2) + sentence


def _check_magic(name: str, received: bytes) -> None:
    begin = received[: len(_MAGIC)]
    if begin == _MAGIC[: len(begin)]:
        return
    for prefix, spoken in _STRANGERS:
        if received.startswith(prefix) or (len(received) > 2 and prefix.startswith(received)):
            raise BadMessage(name, f"the other end speaks {spoken}", f"{NEEDED} is needed there")
    raise BadMessage(name, "the other end speaks something else", f"{NEEDED} is needed there")


def _texts(
    name: str, received: bytes, at: int, sizes: "tuple[int, ...] | list[int]"
) -> list[str] | None:
    if max(sizes) > _TEXT_BYTES_MAX:
        raise BadMessage(name, f"a text in it has more than {_TEXT_BYTES_MAX} bytes")
    end = at + sum(sizes)
    if len(received) < end + _CRC.size:
        return None
    if crc32c(received[:end]) != _CRC.unpack_from(received, end)[0]:
        raise BadMessage(name, "its checksum is wrong")
    if len(received) > end + _CRC.size:
        raise BadMessage(name, "more follows than may")
    texts = []
    for size in sizes:
        try:
            texts.append(received[at : at + size].decode())
        except UnicodeDecodeError as error:
            raise BadMessage(name, "a text in it is not UTF-8") from error
        at += size
    return texts


def _joined(text: str, identity: BookieIdentity | None) -> str:
    """Return *text* alone, or with *identity* behind it. Neither has a NUL in it."""
    if identity is None:
        return text
    return "\0".join((text, identity.instance, identity.identity, str(identity.life)))


def _parted(name: str, said: str) -> tuple[str, BookieIdentity | None]:
    """Return the text and the identity that `_joined` has joined. Raises `BadMessage`."""
    text, *rest = said.split("\0")
    if not rest:
        return text, None
    if len(rest) != 3 or not (rest[2].isascii() and rest[2].isdigit()):
        raise BadMessage(name, "whose it is cannot be understood")
    return text, BookieIdentity(rest[0], rest[1], int(rest[2]))


def _sealed(data: bytes) -> bytes:
    return data + _CRC.pack(crc32c(data))


def _versions(lowest: int, highest: int) -> str:
    return f"version {lowest}" if lowest == highest else f"versions {lowest} to {highest}"
