"""Names of wrapping keys. Pure."""

import base64
import binascii
from typing import Final

NAME_BYTES_MAX: Final = 255
KEY_BYTES: Final = 32
"""AES-256."""
NAME_ALLOWED: Final = (
    f"1 to {NAME_BYTES_MAX} letters, digits and any of . _ : / @ + = - "
    "(and not the key itself, which everybody could see)"
)
_SIGNS: Final = frozenset("._:/@+=-")


def is_key_name(name: str) -> bool:
    """Return whether a wrapping key may have this name: plain text, and no key by mistake."""
    plain = all(each.isascii() and (each.isalnum() or each in _SIGNS) for each in name)
    return plain and 1 <= len(name) <= NAME_BYTES_MAX and not looks_like_key(name)


def looks_like_key(text: str) -> bool:
    """Return whether *text* is as many bytes as a key has, in hexadecimal or base64."""
    try:
        return len(decoded(text)) == KEY_BYTES or len(bytes.fromhex(text)) == KEY_BYTES
    except ValueError:
        return False


def decoded(text: str) -> bytes:
    """Return the bytes that *text* is in base64. Raises ValueError, which does not repeat it."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("it is not base64") from None
