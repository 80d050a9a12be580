"""``dlog log tail --format``: what of a record is printed, written as kcat writes it."""

import codecs
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ledger.errors import InvalidValue

if TYPE_CHECKING:
    from dlog.position import Record

Part = Callable[["Record"], bytes]

FORMAT_HELP: Final = (
    "%s value, %S its length, %k key, %K its length (-1: none), %o offset, %d DLSN, %x txid, "
    "%T time in milliseconds, %h headers as a=1,b=2 (the name alone is a null), "
    "%t log, %% a percent sign"
)


def compile_format(
    text: str, log: str, *, escape: Callable[[bytes], bytes] = bytes
) -> Callable[["Record"], bytes]:
    r"""Return what prints a record of *log* as *text* says; \n, \t, \0 and \x1e are understood.

    *escape* is done to what comes from the log, not to what *text* says itself. Raises
    `InvalidValue` for a letter that means nothing."""
    plain = codecs.escape_decode(text.encode())[0]
    pieces: list[Part] = []
    rest: bytes = plain
    while rest:
        before, percent, rest = rest.partition(b"%")
        if before:
            pieces.append(_constant(before))
        if not percent:
            break
        letter, rest = rest[:1].decode(errors="replace"), rest[1:]
        if letter == "t":
            pieces.append(_constant(escape(log.encode())))
        elif letter in _PARTS:
            pieces.append(_escaped(_PARTS[letter], escape))
        else:
            raise InvalidValue("--format", text, f"%{letter} means nothing; use {FORMAT_HELP}")

    def shown(record: "Record") -> bytes:
        return b"".join([piece(record) for piece in pieces])

    return shown


def _constant(text: bytes) -> Part:
    return lambda _: text


def _escaped(part: Part, escape: Callable[[bytes], bytes]) -> Part:
    return lambda record: escape(part(record))


def _headers(record: "Record") -> bytes:
    pairs = record.headers.pairs()
    return b",".join([n.encode() if v is None else n.encode() + b"=" + v for n, v in pairs])


_PARTS: Final[dict[str, Part]] = {
    "%": _constant(b"%"),
    "s": lambda record: bytes(record.value),
    "S": lambda record: b"%d" % len(record.value),
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "o": lambda record: b"%d" % record.offset,
    "d": lambda record: str(record.dlsn).encode(),
    "x": lambda record: b"" if record.txid is None else b"%d" % record.txid,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": _headers,
}
