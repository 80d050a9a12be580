"""The census: what a bookie holds at a checkpoint, in a few numbers, in its main directory."""

from contextlib import suppress
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, Self

from google_crc32c import value as crc32c

from bookie.disk import Disk, DiskFull
from bookie.errors import CensusDamaged

PATH: Final = "census"
_NEW_PATH: Final = "census.tmp"
_MAGIC: Final = b"DLOGCENS"
_FORM: Final = Struct("<8sIQ")  # magic, version, number; and u32 CRC32C of that
_CRC: Final = Struct("<I")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Census:
    number: int
    """Of the checkpoint; one more at each."""

    def next(self) -> Self:
        """Return that of the checkpoint after this one."""
        return replace(self, number=self.number + 1)

    def encode(self) -> bytes:
        body = _FORM.pack(_MAGIC, _VERSION, self.number)
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises `ValueError`."""
        body = value[: _FORM.size]
        if len(value) != _FORM.size + _CRC.size or value[_FORM.size :] != _CRC.pack(crc32c(body)):
            raise ValueError("not a census, or its checksum differs")
        magic, version, number = _FORM.unpack(body)
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(f"not a census of version {_VERSION}")
        return cls(number)


def read_census(main: Disk) -> Census | None:
    """Return the newest census of the bookie; None if there never was one.

    Raises `CensusDamaged`, `OSError`."""
    try:
        file = main.open(PATH)
    except FileNotFoundError:
        return None
    try:
        data = file.read(file.size(), 0)
    finally:
        file.close()
    try:
        return Census.decode(data)
    except ValueError as error:
        raise CensusDamaged(main.describe(PATH), 0, str(error)) from error


def write_census(main: Disk, census: Census) -> None:
    """Make *census* the newest, durably. Raises `OSError`; then the one before is there."""
    try:
        file = main.create(_NEW_PATH)
        try:
            file.write([census.encode()], 0)
            file.sync()
        finally:
            file.close()
        main.rename(_NEW_PATH, PATH)
    except DiskFull:
        with suppress(OSError):
            main.remove(_NEW_PATH)
        raise
    main.sync_directory("")
