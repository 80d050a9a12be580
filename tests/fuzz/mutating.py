"""Bytes like others, but not the same; the same ones in each run."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

BYTES_MAX: Final = 64 * 1024
_NUMBERS: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1)


def mutants(seeds: Sequence[bytes], key: str, count: int) -> Iterator[bytes]:
    """Yield *count* of them, drawn by *key*."""
    chance = Random(key)
    for _ in range(count):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
            _change(data, seeds, chance)
        yield bytes(data[:BYTES_MAX])


def _change(data: bytearray, seeds: Sequence[bytes], chance: Random) -> None:
    at = chance.randrange(len(data) + 1)
    size = chance.choice((1, 1, 2, 4, 8, 32))
    match chance.randrange(7):
        case 0 if data:
            data[at % len(data)] ^= 1 << chance.randrange(8)
        case 1:
            data[at : at + size] = chance.randbytes(size)
        case 2:
            del data[at : at + size]
        case 3:
            data[at:at] = chance.randbytes(size)
        case 4:
            data[at : at + size] = data[:size]
        case 5:
            other = chance.choice(seeds)
            data[at:] = other[chance.randrange(len(other) + 1) :]
        case _:
            number = chance.choice(_NUMBERS) - chance.randrange(2)
            width = chance.choice((1, 2, 4, 8))
            data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
