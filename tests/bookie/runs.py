"""Runs of entries as a writer makes them, for tests."""

from ledger.entry import encode_frame
from ledger.requests import AddRun

KEY = b"k" * 16


def frame(entry_id: int, *, ledger_id: int = 7, lac: int = -1, payload: bytes = b"") -> bytes:
    body = payload or b"entry %d" % entry_id
    return encode_frame(
        ledger_id=ledger_id,
        entry_id=entry_id,
        last_add_confirmed=lac,
        length=len(body),
        payload=body,
    )


def run_of(
    *entries: int,
    ledger_id: int = 7,
    lac: int = -1,
    key: bytes = KEY,
    payload: bytes = b"",
    recovery: bool = False,
) -> AddRun:
    frames = [frame(e, ledger_id=ledger_id, lac=lac, payload=payload) for e in entries]
    lengths = [len(one) for one in frames]
    return AddRun(ledger_id, key, entries, lengths, b"".join(frames), recovery=recovery)
