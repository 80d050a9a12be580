"""What proves the last add confirmed that a frame carries, without its payload."""

from ledger.entry import HEADER_BYTES, parse_header


def proof_of(frame: bytes | memoryview) -> bytes:
    """Return header and trailer of *frame*."""
    trailer_at = len(frame) - parse_header(frame).trailer_bytes
    return bytes(frame[:HEADER_BYTES]) + bytes(frame[trailer_at:])
