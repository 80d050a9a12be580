"""The envelope that is made by hand is the one of protobuf, byte for byte."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ledger.transport.envelope import decode_envelope, encode_head
from ledger.wire import bookie_pb2 as pb

crcs = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 70_000])


def by_protobuf(crc: int, message: bytes, frames: bytes) -> bytes:
    return pb.Checked(crc=crc, message=message, frames=frames).SerializeToString()


@given(crcs, sizes, st.lists(sizes, max_size=3))
def test_it_is_written_as_protobuf_writes_it(crc: int, size: int, parts: list[int]) -> None:
    message, frames = b"m" * size, [b"f" * part for part in parts]
    written = encode_head(crc, message, sum(map(len, frames))) + b"".join(frames)
    assert written == by_protobuf(crc, message, b"".join(frames))


@given(crcs, sizes, sizes)
def test_what_protobuf_writes_is_read_and_the_frames_are_not_copied(
    crc: int, size: int, frames_bytes: int
) -> None:
    received = by_protobuf(crc, b"m" * size, b"f" * frames_bytes)
    taken_crc, message, frames = decode_envelope(received)
    assert (taken_crc, message, bytes(frames)) == (crc, b"m" * size, b"f" * frames_bytes)
    assert not frames_bytes or (isinstance(frames, memoryview) and frames.obj is received)


def test_other_orders_and_unknown_fields_are_read_as_protobuf_reads_them() -> None:
    crc, message, frames = (by_protobuf(7, b"", b""), by_protobuf(0, b"m", b""),
                            by_protobuf(0, b"", b"f"))  # fmt: skip
    unknown = b"\x78\x01"
    for received in (frames + message + crc, crc + crc + message + frames + unknown):
        assert decode_envelope(received) == (7, b"m", b"f")


@given(crcs, st.binary(max_size=200), st.binary(max_size=200), st.data())
def test_damaged_bytes_are_read_as_protobuf_reads_them_or_refused_as_it_does(
    crc: int, message: bytes, frames: bytes, data: st.DataObject
) -> None:
    received = bytearray(by_protobuf(crc, message, frames))
    for _ in range(data.draw(st.integers(0, 3)) if received else 0):
        received[data.draw(st.integers(0, len(received) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(received[: data.draw(st.integers(0, len(received)))])
    try:
        expected = pb.Checked.FromString(damaged)
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_envelope(damaged)
    else:
        taken_crc, taken, taken_frames = decode_envelope(damaged)
        assert (taken_crc, taken) == (expected.crc, expected.message)
        assert bytes(taken_frames) == expected.frames
