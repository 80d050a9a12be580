"""Entries of ledgers as a writer sends them: frames in runs, made without a ledger client."""

from collections.abc import Iterator

from ledger.entry import HEADER_BYTES, encode_frame
from ledger.requests import AddRun

KEY = b"k" * 16


def runs_of(
    ledger_id: int,
    payload_bytes: int,
    count: int,
    *,
    run_bytes: int,
    first: int = 0,
    key: bytes = KEY,
) -> Iterator[AddRun]:
    """Yield *count* entries of one ledger from *first* on, as runs of about *run_bytes*."""
    payload = bytes(payload_bytes)
    frame_bytes = HEADER_BYTES + payload_bytes
    step = max(1, run_bytes // frame_bytes)
    end = first + count
    for start in range(first, end, step):
        entries = range(start, min(end, start + step))
        frames = [
            encode_frame(
                ledger_id=ledger_id,
                entry_id=entry_id,
                last_add_confirmed=start - 1,
                length=(entry_id + 1) * payload_bytes,
                payload=payload,
            )
            for entry_id in entries
        ]
        lengths = [frame_bytes] * len(entries)
        yield AddRun(ledger_id, key, entries, lengths, b"".join(frames))
