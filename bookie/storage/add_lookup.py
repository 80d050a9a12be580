"""Lookups on disk for an add, before it is taken.

An add of an id at or below the ledger's highest on disk must be compared with what is stored
under it (rule 11). That needs the disk, so it is done where blocking is allowed, ahead of the add.
"""

from dataclasses import dataclass
from typing import TypeAlias

from ledger.requests import Status


@dataclass(frozen=True, slots=True)
class Vetted:
    """These entries of an add are on disk, byte for byte, as of *generation*."""

    present: dict[int, None]
    generation: int
    """Counts the checkpoints: it is out of date when the storage's is another one."""


Prepared: TypeAlias = Vetted | Status | None
"""A status is the answer that the add will get, if nothing else refuses it; in any case, if it is
`NO_SUCH_LEDGER`, as nobody made the ledger, `TOO_MANY_REQUESTS`, as that could not be asked, or
`ACCESS_DENIED`."""
