"""Ledger metadata: the value that every change of a ledger compares and swaps.

States go OPEN -> IN_RECOVERY -> CLOSED or OPEN -> CLOSED, never back (rule 4). Fragments are
strictly ordered by first entry (rule 20); a fragment's ensemble holds the entries from its
first entry up to the next fragment's.

Invariants (checked when a value is made):
    quorum.ensemble bookies in each fragment, all different
    first fragment begins at entry 0; first entries strictly increase
    CLOSED iff last_entry and length are known
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from itertools import pairwise
from typing import Final, Self

from google.protobuf.message import DecodeError

from ledger.entry import Digest
from ledger.errors import DamagedMetadata, InvalidQuorum
from ledger.ids import NO_ENTRY, BookieId, EntryId
from ledger.quorum import Quorum
from ledger.wire import metadata_pb2 as pb

FORMAT_VERSION: Final = 2
FORMAT_WITHOUT_SECRET: Final = 1
"""Of ledgers without a secret, still written for them: every program reads it."""
SECRET_BYTES: Final = 32


class LedgerState(IntEnum):
    """Persisted: keep the numbers."""

    OPEN = 1
    """One writer adds; nobody has tried to recover it."""
    IN_RECOVERY = 2
    """Somebody fences it; the writer can no longer change the ensemble."""
    CLOSED = 3
    """Terminal: last entry and length are fixed for ever."""


class SwapRefusal(Enum):
    """Why one member of a fragment may not be replaced; the value is a sentence for people."""

    NO_FRAGMENT = "no fragment begins at that entry"
    """It was replaced by its writer, or never was."""
    UNSETTLED = "its writer or a recovery may still change the fragment"
    NO_INDEX = "the ensemble has no such index"
    DONE = "the new member is there already"
    """By an earlier swap whose reply was lost, or by somebody else's."""
    OTHER_MEMBER = "another bookie than the one to be replaced is there"
    ALREADY_MEMBER = "the new member holds another share of the fragment"


@dataclass(frozen=True, slots=True)
class Fragment:
    """The entries from *first_entry* on are held by *bookies*, an ordered ensemble."""

    first_entry: EntryId
    bookies: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    quorum: Quorum
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: EntryId | None = None
    length: int | None = None
    digest: Digest = Digest.CRC32C
    access_key: bytes = field(default=b"", repr=False)
    """What bookies ask for; see `ledger.entry.access_key`."""
    secret: bytes = field(default=b"", repr=False)
    """Random, made with the ledger, in place of a password: who may read the metadata may read,
    fence and recover the ledger, and nobody else. Empty: its users know the password."""
    custom: Mapping[str, bytes] = field(default_factory=dict)
    creation_token: bytes = b""
    created_ms: int = 0

    def __post_init__(self) -> None:
        assert self.fragments, "a ledger has at least one fragment"
        assert self.fragments[0].first_entry == 0, "the first fragment begins at entry 0"
        firsts = [fragment.first_entry for fragment in self.fragments]
        assert all(a < b for a, b in pairwise(firsts)), (
            f"fragments must be strictly ordered: {firsts}"
        )
        for fragment in self.fragments:
            assert len(fragment.bookies) == self.quorum.ensemble, "ensemble of the wrong size"
            assert len(set(fragment.bookies)) == len(fragment.bookies), "bookie twice in ensemble"
        closed = self.state is LedgerState.CLOSED
        assert closed == (self.last_entry is not None) == (self.length is not None), (
            "exactly a CLOSED ledger has last entry and length"
        )

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def fragment_of(self, entry_id: int) -> Fragment:
        """Return the fragment whose ensemble holds *entry_id*."""
        firsts = [fragment.first_entry for fragment in self.fragments]
        return self.fragments[bisect_right(firsts, entry_id) - 1]

    def fragment_end(self, fragment: Fragment) -> EntryId | None:
        """Return the last entry of *fragment*, or None if it is open at its end."""
        index = self.fragments.index(fragment)
        if index + 1 < len(self.fragments):
            return EntryId(self.fragments[index + 1].first_entry - 1)
        return self.last_entry

    def settled_end(self, fragment: Fragment) -> EntryId | None:
        """Return the last entry of *fragment* that is settled: acknowledged, and for ever.

        None while the fragment may change: it is the last one of a ledger that is not CLOSED. First
        entry - 1, or less, if nothing is in it (rule 52). By its key, never by its ensemble."""
        end = self.fragment_end(fragment)
        if end is None or self.last_entry is None:
            return end
        return min(end, self.last_entry)

    def replaced(
        self, first_entry: int, index: int, old: BookieId, new: BookieId
    ) -> Self | SwapRefusal:
        """Return metadata in which *new* holds what *old* held, at *index* of the fragment that
        begins at *first_entry*; nothing else differs. Or why that may not be.

        For whoever has copied every entry of that index to *new*, durably. Of a fragment that is
        not the last, or of a CLOSED ledger, only: there no writer and no recovery decides by who
        is in it. An edit of an open ledger's last fragment would fence its writer."""
        fragment = next((each for each in self.fragments if each.first_entry == first_entry), None)
        if fragment is None:
            return SwapRefusal.NO_FRAGMENT
        if self.settled_end(fragment) is None:
            return SwapRefusal.UNSETTLED
        bookies = fragment.bookies
        if not 0 <= index < len(bookies):
            return SwapRefusal.NO_INDEX
        if bookies[index] == new:
            return SwapRefusal.DONE
        if bookies[index] != old:
            return SwapRefusal.OTHER_MEMBER
        if new in bookies:
            return SwapRefusal.ALREADY_MEMBER
        swapped = Fragment(fragment.first_entry, (*bookies[:index], new, *bookies[index + 1 :]))
        fragments = tuple(swapped if each is fragment else each for each in self.fragments)
        return replace(self, fragments=fragments)

    def with_ensemble(self, first_entry: EntryId, bookies: tuple[BookieId, ...]) -> Self:
        """Return metadata whose entries from *first_entry* on are held by *bookies*.

        Replaces the last fragment if it begins there (nothing was acknowledged in it),
        else appends one (rule 20). Requires first_entry >= the last fragment's first."""
        kept = self.fragments
        if kept[-1].first_entry == first_entry:
            kept = kept[:-1]
        return replace(self, fragments=(*kept, Fragment(first_entry, bookies)))

    def in_recovery(self) -> Self:
        assert self.state is LedgerState.OPEN
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry: EntryId, length: int) -> Self:
        """Return the closed ledger. Fragments that begin after its end stay: rule 52."""
        assert self.state is not LedgerState.CLOSED, "CLOSED is terminal"
        return replace(self, state=LedgerState.CLOSED, last_entry=last_entry, length=length)

    def encode(self) -> bytes:
        node = pb.LedgerNode(
            version=FORMAT_VERSION if self.secret else FORMAT_WITHOUT_SECRET,
            ensemble=self.quorum.ensemble,
            write_quorum=self.quorum.write,
            ack_quorum=self.quorum.ack,
            state=pb.LedgerState.ValueType(self.state),
            last_entry=NO_ENTRY if self.last_entry is None else self.last_entry,
            length=self.length or 0,
            digest=self.digest,
            access_key=self.access_key,
            secret=self.secret,
            fragments=[
                pb.FragmentNode(first_entry=f.first_entry, bookies=f.bookies)
                for f in self.fragments
            ],
            custom=self.custom,
            creation_token=self.creation_token,
            created_ms=self.created_ms,
        )
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, *, path: str) -> Self:
        """Return what *value*, read at *path*, says. Raises `DamagedMetadata`."""
        try:
            node = pb.LedgerNode.FromString(value)
        except DecodeError as error:
            raise DamagedMetadata(path, str(error)) from error
        if node.version not in {FORMAT_WITHOUT_SECRET, FORMAT_VERSION}:
            raise DamagedMetadata(
                path, f"format version {node.version}, this program knows {FORMAT_VERSION}"
            )
        try:
            state = LedgerState(node.state)
            closed = state is LedgerState.CLOSED
            return cls(
                quorum=Quorum(node.ensemble, node.write_quorum, node.ack_quorum),
                fragments=tuple(
                    Fragment(EntryId(f.first_entry), tuple(BookieId(b) for b in f.bookies))
                    for f in node.fragments
                ),
                state=state,
                last_entry=EntryId(node.last_entry) if closed else None,
                length=node.length if closed else None,
                digest=Digest(node.digest),
                access_key=node.access_key,
                secret=node.secret,
                custom=dict(node.custom),
                creation_token=node.creation_token,
                created_ms=node.created_ms,
            )
        except (AssertionError, ValueError, InvalidQuorum) as error:
            raise DamagedMetadata(path, str(error)) from error
