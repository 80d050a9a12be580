"""An object comes back as it was written; any byte that differs is noticed."""

from collections.abc import Callable

import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

from dlog.archive.object_format import (
    BLOCK_BYTES,
    END_MAGIC,
    FOOTER_BYTES_MAX,
    MAGIC,
    TRAILER_BYTES,
    ArchivedSegment,
    ObjectEncoder,
    ObjectIndex,
    footer_range,
    parse_footer,
)
from dlog.errors import MalformedObject
from dlog.manifest import Sealed
from dlog.wire import archive_pb2 as pb
from ledger.entry import Digest, encode_frame, mac_key
from ledger.ids import EntryId, LedgerId

LEDGER = LedgerId(7)


def frames(payloads: list[bytes], mac: bytes | None = None) -> list[bytes]:
    length, made = 0, []
    for entry_id, payload in enumerate(payloads):
        length += len(payload)
        made.append(
            encode_frame(
                ledger_id=LEDGER,
                entry_id=entry_id,
                last_add_confirmed=entry_id - 1,
                length=length,
                payload=payload,
                mac=mac,
            )
        )
    return made


def encoded(
    payloads: list[bytes], digest: Digest = Digest.CRC32C, mac: bytes | None = None
) -> tuple[bytes, ObjectEncoder]:
    last = EntryId(len(payloads) - 1)
    segment = ArchivedSegment(
        incarnation="i",
        log="orders",
        number=3,
        ledger_id=LEDGER,
        first_offset=5,
        sealed=Sealed(last, len(payloads), sum(map(len, payloads)), 1, 2, 1000, 2000),
        created_ms=9,
        digest=digest,
        custom={"key": b"wrapped"},
    )
    encoder = ObjectEncoder(segment)
    parts = [encoder.begin()]
    parts += [block for frame in frames(payloads, mac) if (block := encoder.add(frame))]
    parts.append(encoder.end())
    data = b"".join(parts)
    assert len(data) == encoder.bytes
    return data, encoder


def parse(data: bytes) -> ObjectIndex:
    end = data[-TRAILER_BYTES:]
    footer = footer_range(end, len(data))
    return parse_footer(data[footer.start : footer.stop], end, len(data))


def payloads_of(data: bytes) -> list[bytes]:
    """Read all of *data* as a reader that verifies it."""
    if not data.startswith(MAGIC):
        raise MalformedObject("no magic")
    index, payloads = parse(data), list[bytes]()
    for block in range(index.blocks):
        where = index.range_of(block)
        for entry in index.entries_in(block, data[where.start : where.stop]):
            index.verify(entry)
            payloads.append(bytes(entry.payload))
    return payloads


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_what_was_written_comes_back(payloads: list[bytes]) -> None:
    data, encoder = encoded(payloads)
    assert parse(data) == encoder.index()
    assert payloads_of(data) == payloads


def test_large_segments_have_blocks_that_are_found_by_entry() -> None:
    payloads = [b"%d" % index * 20_000 for index in range(100)]
    data, _ = encoded(payloads)
    index = parse(data)
    assert index.blocks > 3
    for entry in range(100):
        block = index.block_of(entry)
        assert index.firsts[block] <= entry < index.firsts[block + 1]
        assert len(index.range_of(block)) < BLOCK_BYTES + 50_000
    assert payloads_of(data) == payloads


def test_entries_with_a_code_are_checked_as_far_as_it_can_be_seen_without_the_key() -> None:
    mac = mac_key(b"secret")
    data, _ = encoded([b"a", b"b"], Digest.HMAC_SHA256, mac)
    assert payloads_of(data) == [b"a", b"b"]
    data, _ = encoded([b"a", b"b"], Digest.CRC32C, mac)
    with pytest.raises(MalformedObject):
        payloads_of(data)


def test_every_byte_that_differs_and_every_end_that_lacks_is_noticed() -> None:
    data, _ = encoded([b"first", b"second"])
    for at in range(len(data)):
        with pytest.raises(MalformedObject):
            payloads_of(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(MalformedObject):
            payloads_of(data[:at])
    with pytest.raises(MalformedObject):
        payloads_of(data + b"x")


def refooted(change: Callable[[pb.ObjectFooter], object]) -> bytes:
    """Return an object whose footer says something else, with the right checksum."""
    data, _ = encoded([b"first", b"second"])
    where = footer_range(data[-TRAILER_BYTES:], len(data))
    node = pb.ObjectFooter.FromString(data[where.start : where.stop])
    change(node)
    footer = node.SerializeToString()
    trailer = len(footer).to_bytes(4, "little") + int(value(footer)).to_bytes(4, "little")
    return data[: where.start] + footer + trailer + END_MAGIC


def lengthen(node: pb.ObjectFooter) -> None:
    node.block_bytes[0] += 1


def count_negatively(node: pb.ObjectFooter) -> None:
    node.block_bytes.append(-1)
    node.block_entries.append(1)
    node.block_crc.append(0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda node: setattr(node, "version", 2), "format version 2; this dlog reads 1: upgrade"),
        (lengthen, "not as long as the object"),
        (count_negatively, "a block is empty"),
        (lambda node: node.block_crc.append(1), "differ in length"),
        (lambda node: setattr(node, "last_entry", 5), "do not have the entries"),
        (lambda node: setattr(node, "last_entry", -2), "do not have the entries"),
        (lambda node: setattr(node, "digest", 99), "unknown digest 99"),
    ],
)
def test_a_footer_that_contradicts_itself_is_refused(
    change: Callable[[pb.ObjectFooter], object], reason: str
) -> None:
    with pytest.raises(MalformedObject, match=reason):
        payloads_of(refooted(change))


def test_a_footer_that_promises_more_than_fits_is_refused_before_it_is_read() -> None:
    for promised in (100, FOOTER_BYTES_MAX + 1, 2**32 - 1):
        end = promised.to_bytes(4, "little") + bytes(4) + END_MAGIC
        with pytest.raises(MalformedObject, match="does not fit"):
            footer_range(end, 50)


def test_an_object_of_another_segment_of_the_log_is_refused() -> None:
    other = refooted(lambda node: setattr(node, "ledger", 8))
    with pytest.raises(MalformedObject, match="another entry"):
        payloads_of(other)


def test_an_object_with_too_few_entries_is_not_ended() -> None:
    encoder = ObjectEncoder(parse(encoded([b"first", b"second"])[0]).segment)
    encoder.begin()
    encoder.add(frames([b"first"])[0])
    with pytest.raises(MalformedObject, match="1 entries instead of 2"):
        encoder.end()
