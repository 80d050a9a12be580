"""Memory to receive large answers to, used again once nobody looks at them any more. No I/O.

Memory by the megabyte comes fresh from the system each time, and that costs more than all that is
done with the bytes. An answer's bytes are looked at by reference as long as somebody keeps a part
of them: so whether a block is free is not counted by anybody here, it is asked of the block. A
`bytearray` refuses to change its size while there is any view of it.

Invariants:
    no block is handed out while there is a view of it
    not more than `BLOCKS_MAX` blocks are kept
"""

from typing import Final

BLOCK_BYTES: Final = 2624 * 1024
"""What a reader asks for at once, with what an answer has beside frames."""
BLOCK_SHARE_MIN: Final = 2
"""What is smaller than that part of a block has memory of its own size: a view of a little keeps
no more than twice as much."""
BLOCKS_MAX: Final = 8


class Blocks:
    """See the module's docstring. Of one event loop."""

    def __init__(self) -> None:
        self._blocks: list[bytearray] = []
        self._used = 0
        """How many were in use at once since `rest`."""

    def __len__(self) -> int:
        return len(self._blocks)

    def take(self, size_bytes: int) -> memoryview | None:
        """Return memory of *size_bytes*, with anything in it; None if it is to be had elsewhere."""
        if not BLOCK_BYTES <= size_bytes * BLOCK_SHARE_MIN <= BLOCK_BYTES * BLOCK_SHARE_MIN:
            return None
        for at, block in enumerate(self._blocks):
            if _is_free(block):
                self._used = max(self._used, at + 1)
                return memoryview(block)[:size_bytes]
        if len(self._blocks) == BLOCKS_MAX:
            return None
        block = bytearray(BLOCK_BYTES)
        self._blocks.append(block)
        self._used = len(self._blocks)
        return memoryview(block)[:size_bytes]

    def rest(self) -> None:
        """Let the memory go that was not needed since the last call."""
        del self._blocks[self._used :]
        self._used = 0


def _is_free(block: bytearray) -> bool:
    """Whether there is no view of *block*."""
    try:
        block.pop()
    except BufferError:
        return False
    block.append(0)
    return True
