"""Frames that the targets have in common."""

from typing import Final

from ledger.entry import (
    encode_frame,
    mac_key,
)

KEY: Final = b"k" * 16
FRAMES: Final = [
    encode_frame(ledger_id=7, entry_id=at, last_add_confirmed=at - 1, length=9, payload=payload)
    for at, payload in enumerate((b"one", b"", b"three" * 20))
]
MAC: Final = mac_key(b"secret")
AUTHENTIC: Final = encode_frame(
    ledger_id=7, entry_id=0, last_add_confirmed=-1, length=3, payload=b"one", mac=MAC
)
