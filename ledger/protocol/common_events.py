"""Events and effects that several machines of this package have in common.

What a machine asks of its driver beside questions to bookies: the ledger's metadata, bookies
to put in the place of others, and to be called again at its deadline.
"""

from dataclasses import dataclass

from ledger.ids import BookieId
from ledger.metadata import LedgerMetadata

# Events.


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The CAS succeeded."""

    version: int


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """What is stored now: asked for, seen by a watch, after a CAS that failed, or because the
    outcome of one is unknown.

    *metadata* is None iff the ledger was deleted."""

    metadata: LedgerMetadata | None
    version: int


@dataclass(frozen=True, slots=True)
class MetadataFailed:
    """The store did not answer a write or a read."""


@dataclass(frozen=True, slots=True)
class ReplacementsChosen:
    """Answer to `ChooseReplacements`: new bookies by index, empty if there are not enough."""

    bookies: tuple[tuple[int, BookieId], ...]


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`deadline` was reached."""


MetadataEvent = MetadataWritten | MetadataRead | MetadataFailed


# Effects.


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """CAS; report MetadataWritten, MetadataRead (it conflicted) or MetadataFailed."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Report MetadataRead or MetadataFailed."""


@dataclass(frozen=True, slots=True)
class ChooseReplacements:
    """Pick a bookie for each of *indexes* of *ensemble*, none of *exclude*.

    Report ReplacementsChosen."""

    indexes: tuple[int, ...]
    exclude: tuple[BookieId, ...]
    ensemble: tuple[BookieId, ...]


MetadataEffect = WriteMetadata | ReadMetadata
