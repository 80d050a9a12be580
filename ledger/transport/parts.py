"""Large messages of an Add stream travel in parts, so that a bookie decides how much it holds.

The library that carries messages takes each one whole before anybody here sees a byte of it, as
many at once as there are streams. So a bookie lets a message have `PART_BYTES_MAX` only; what
is larger, which is a large entry or a recovery's run, comes as several, and the bookie puts them
together within a budget for all its clients.

A part begins with a byte that no message begins with: 0, more follows; 1, the last one.
"""

from collections.abc import Iterator
from typing import Final

from ledger.errors import BadMessage

PART_BYTES_MAX: Final = 1024 * 1024
ASSEMBLED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Parts that a bookie holds of all messages that are not whole yet."""
_MORE: Final = b"\0"
_LAST: Final = b"\1"


def parts(message: bytes) -> Iterator[bytes]:
    """Yield what travels for *message*; in the common case, the same."""
    if len(message) <= PART_BYTES_MAX:
        yield message
        return
    view = memoryview(message)
    for start in range(0, len(view), PART_BYTES_MAX):
        end = start + PART_BYTES_MAX
        yield b"".join((_MORE if end < len(view) else _LAST, view[start:end]))


class Budget:
    """How many bytes of parts are held, of all streams together."""

    def __init__(self, bytes_max: int = ASSEMBLED_BYTES_MAX) -> None:
        self.left_bytes = self.bytes_max = bytes_max


class Assembly:
    """Puts the messages of one stream together."""

    def __init__(self, budget: Budget, *, message_bytes_max: int) -> None:
        self._budget = budget
        self._message_bytes_max = message_bytes_max
        self._parts: list[memoryview] = []
        self._held_bytes = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a message has begun and is not whole."""
        return bool(self._parts)

    def add(self, received: bytes) -> bytes | None:
        """Return the message that *received* is, or completes; None if more must follow.

        Raises `BadMessage` if it is too large, or if there is no room for it."""
        mark = received[:1]
        if mark not in (_MORE, _LAST):
            if self._parts:
                raise BadMessage("AddBatch", "the rest of another one is missing")
            return received
        size_bytes = len(received) - 1
        if self._held_bytes + size_bytes > self._message_bytes_max:
            raise BadMessage("AddBatch", f"it has more than {self._message_bytes_max} bytes")
        if size_bytes > self._budget.left_bytes:
            raise BadMessage("AddBatch", "there is no room for large messages; send it again")
        self._budget.left_bytes -= size_bytes
        self._held_bytes += size_bytes
        self._parts.append(memoryview(received)[1:])
        if mark == _MORE:
            return None
        whole = b"".join(self._parts)
        self.drop()
        return whole

    def drop(self) -> None:
        """Give back what is held."""
        self._budget.left_bytes += self._held_bytes
        self._held_bytes = 0
        self._parts.clear()
