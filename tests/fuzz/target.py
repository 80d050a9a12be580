"""What is fuzzed: a parser, what it may raise, and bytes that it takes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from google_crc32c import extend

CORPUS: Final = Path(__file__).with_name("corpus")


@dataclass(frozen=True, slots=True)
class Target:
    """A parser of bytes.

    *seal* makes of any bytes others that pass its checksums: who attacks can compute them, and
    who only damages bytes is stopped by them. *use* does with what was parsed what its users do
    with it, and raises if that fails: what a parser lets pass may be believed."""

    name: str
    parse: Callable[[bytes], Any]
    seeds: tuple[bytes, ...]
    refuses: type[Exception] | tuple[type[Exception], ...]
    seal: Callable[[bytes], bytes] = field(default=bytes)
    use: Callable[[Any], object] = field(default=repr)

    @property
    def kept(self) -> list[bytes]:
        """What was found once, and is tried for ever."""
        directory = CORPUS / self.name
        return [path.read_bytes() for path in sorted(directory.glob("*"))]

    def keep(self, data: bytes) -> Path:
        """Put *data* into the corpus."""
        path = CORPUS / self.name / sha256(data).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def try_with(self, data: bytes) -> bool:
        """Return whether *data*, sealed, is taken. Raises what no parser may."""
        try:
            parsed = self.parse(self.seal(data))
        except self.refuses:
            return False
        self.use(parsed)
        return True


def crc(data: bytes, seed: int = 0) -> bytes:
    """Return the CRC32C of *data*, as it is stored."""
    return int(extend(seed, data)).to_bytes(4, "little")


def sealed_at_end(data: bytes) -> bytes:
    """Let the last four bytes be the CRC32C of all before them."""
    return data if len(data) < 4 else data[:-4] + crc(data[:-4])
