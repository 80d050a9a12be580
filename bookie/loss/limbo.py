"""Pure: what a bookie that may have lost something may say; docs/protocol.md has the proof.

It may have forgotten entries and fences. So it denies no entry of a ledger if it may have
promised one there that still counts, and never again takes a normal add to a ledger that was there
before it knew of its loss: a deposed writer must not be acknowledged by a forgotten fence.

    BEGUN     not known yet which ledgers there are: each is doubtful, no normal add is taken
    SETTLING  *before* and *doubtful* are known; ledgers made later are like any other's
    OVER      nothing is doubtful any more; *before* stays

*Doubtful* is a ledger that is not CLOSED, and whose last fragment names this bookie: only of such
a ledger does a recovery, or who looks for its end, take a "no" for evidence.

A metadata store that was restored to an older moment begins a limbo, too, of a bookie that *lost*
nothing. Its "no" is true, but it is no evidence: the fragment that names it may be older than one
that it has never heard of. So reads and LACs are answered as above, and lists, by which no recovery
decides, say all. Only of what it has let go of since it denies nothing: it had promised that.
Ledgers below the *floor* are older than the restore, also those that the store has forgotten.

Invariants:
    a ledger leaves *doubtful* only by what the metadata store said after it was doubted
    a ledger leaves *before* only when it was deleted, as far as the metadata store says
    the floor only rises, and a loss stays known, whatever is restored later
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from struct import Struct
from typing import Final, Self

from google_crc32c import value as crc32c

from ledger.metadata import LedgerMetadata, LedgerState
from ledger.requests import HeldAnswer, HeldQuery, LacAnswer, ReadAnswer, ReadQuery, Status

VERSION: Final = 2
REASON_BYTES_MAX: Final = 4096
_MAGIC: Final = b"DLOGLIMB"
_HEADER_1: Final = Struct("<8sIIIQQ")  # magic, version, phase, bytes of reason, before, doubtful
_HEADER: Final = Struct("<8sIIIQQqI")  # and the floor, whether something is lost
_CRC: Final = Struct("<I")


class LimboPhase(IntEnum):
    """Persisted: keep the numbers."""

    BEGUN = 1
    SETTLING = 2
    OVER = 3


@dataclass(frozen=True, slots=True)
class Limbo:
    """See the module's docstring."""

    reason: str
    """What may be lost, as a sentence."""
    phase: LimboPhase = LimboPhase.BEGUN
    before: "array[int]" = field(default_factory=lambda: array("q"))
    """Ledgers that were there when the losses were known, ascending."""
    doubtful: frozenset[int] = frozenset()
    floor: int = 0
    """Ledgers below it were made before the metadata store was restored; 0: it never was."""
    lost: bool = True
    """Whether this bookie may have lost something itself."""

    @property
    def warning(self) -> str:
        """What an operator sees; "" once nothing is doubtful."""
        match self.phase:
            case LimboPhase.BEGUN:
                return f"in limbo: {self._what} data: {self.reason}"
            case LimboPhase.SETTLING:
                doubtful = len(self.doubtful)
                return (
                    f"in limbo: {self._what} data of {doubtful} ledgers that are open: "
                    f"{self.reason}"
                )
            case LimboPhase.OVER:
                return ""

    @property
    def _what(self) -> str:
        return "it may have lost" if self.lost else "the metadata store may know too little of"

    def takes_adds_to(self, ledger_id: int) -> bool:
        """Whether it takes normal adds to the ledger, if nothing else is against it."""
        if self.phase is LimboPhase.BEGUN or ledger_id < self.floor:
            return False
        return not self._was_before(ledger_id)

    def is_orphan(self, ledger_id: int) -> bool:
        """Whether the ledger, if the store does not know it, is one that it forgot when it was
        restored: then no deletion explains that it is gone."""
        return ledger_id < self.floor and not self._was_before(ledger_id)

    def _was_before(self, ledger_id: int) -> bool:
        at = bisect_left(self.before, ledger_id)
        return at < len(self.before) and self.before[at] == ledger_id

    def doubts(self, ledger_id: int) -> bool:
        """Whether what is not here of the ledger may have been lost."""
        return self.phase is LimboPhase.BEGUN or ledger_id in self.doubtful

    def read(self, query: ReadQuery, answer: ReadAnswer) -> ReadAnswer:
        """Return what of *answer* may be said: what is here, and no absence if it is in doubt."""
        if answer.status not in {Status.OK, Status.NO_SUCH_LEDGER}:
            return answer
        if not self.doubts(query.ledger_id):
            return answer
        considered = query.first - 1
        for entry_id in answer.entries:
            if entry_id != considered + 1:
                break
            considered = entry_id
        status = Status.OK if considered >= query.first else Status.UNKNOWN
        return replace(answer, status=status, considered=considered)

    def held(self, query: HeldQuery, answer: HeldAnswer, *, let_go: bool) -> HeldAnswer:
        """Return what of *answer* may be said: what is here, and no absence if it is in doubt.

        *let_go*: whether the ledger was deleted or evicted here at some time."""
        if answer.status not in {Status.OK, Status.NO_SUCH_LEDGER}:
            return answer
        if not self.doubts(query.ledger_id) or not (self.lost or let_go):
            return answer
        considered = query.first - 1
        if answer.firsts and answer.firsts[0] == query.first:
            considered = min(answer.considered, answer.lasts[0])
        status = Status.OK if considered >= query.first else Status.UNKNOWN
        return replace(answer, status=status, considered=considered)

    def lac(self, ledger_id: int, answer: LacAnswer) -> LacAnswer:
        """Return what of *answer* may be said: a proof and a fence, but not where it ends."""
        if answer.status not in {Status.OK, Status.NO_SUCH_LEDGER} or not self.doubts(ledger_id):
            return answer
        return replace(answer, status=Status.UNKNOWN)

    def again(self, reason: str) -> "Limbo":
        """Return it after more may have been lost."""
        return replace(self, reason=reason, phase=LimboPhase.BEGUN, lost=True)

    def restored(self, reason: str) -> "Limbo":
        """Return it after the metadata store was restored to an older moment."""
        return replace(self, reason=reason, phase=LimboPhase.BEGUN)

    def above(self, floor: int) -> "Limbo":
        """Return it once no new ledger gets an id below *floor*."""
        return replace(self, floor=max(floor, self.floor))

    def known(self, before: Iterable[int], doubtful: Iterable[int]) -> "Limbo":
        """Return it once *before* and *doubtful* are found, in what the store said after the
        losses were known."""
        phase, doubts = _judged(doubtful)
        return replace(self, phase=phase, before=array("q", sorted(before)), doubtful=doubts)

    def still(self, doubtful: Iterable[int]) -> "Limbo":
        """Return it with only these of its doubtful ledgers left in doubt."""
        assert self.phase is not LimboPhase.BEGUN, "it is not known yet what is doubtful"
        phase, doubts = _judged(one for one in doubtful if one in self.doubtful)
        return replace(self, phase=phase, doubtful=doubts)

    def only(self, listed: Iterable[int]) -> "Limbo":
        """Return it without what is not among *listed*, all ledgers that the store has now.

        Beside a floor all stay: those below it that are not among them are orphans."""
        assert self.phase is LimboPhase.OVER, "what is doubtful is looked at one by one"
        if self.floor:
            return self
        there = dict.fromkeys(listed)
        return replace(self, before=array("q", [one for one in self.before if one in there]))

    def encode(self) -> bytes:
        reason = self.reason.encode()[:REASON_BYTES_MAX]
        header = _HEADER.pack(
            _MAGIC,
            VERSION,
            self.phase,
            len(reason),
            len(self.before),
            len(self.doubtful),
            self.floor,
            self.lost,
        )
        doubtful = array("q", sorted(self.doubtful))
        body = b"".join((header, reason, self.before.tobytes(), doubtful.tobytes()))
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `ValueError`."""
        body = data[: -_CRC.size]
        if len(data) < _HEADER_1.size + _CRC.size:
            raise ValueError("it is cut short")
        if _CRC.unpack_from(data, len(body))[0] != crc32c(body):
            raise ValueError("its checksum differs")
        magic, version, phase, reason_bytes, before, doubtful = _HEADER_1.unpack_from(body)
        if magic != _MAGIC or version not in (1, VERSION):
            raise ValueError(f"it is not of a version up to {VERSION}")
        header, floor, lost = _HEADER_1, 0, 1
        if version == VERSION:
            header = _HEADER
            if len(body) < header.size:
                raise ValueError("it is cut short")
            *_, floor, lost = header.unpack_from(body)
        reason_end = header.size + reason_bytes
        before_end = reason_end + 8 * before
        ids, doubts = array("q"), array("q")
        ids.frombytes(body[reason_end:before_end])
        doubts.frombytes(body[before_end : before_end + 8 * doubtful])
        reason = body[header.size : reason_end].decode(errors="replace")
        return cls(reason, LimboPhase(phase), ids, frozenset(doubts), floor, bool(lost))


def is_doubtful(metadata: LedgerMetadata, bookie: str, *, is_older: bool = False) -> bool:
    """Whether a "no" of *bookie* would be evidence of where the ledger ends. *is_older*: the
    metadata may be older than the ledger is, so it may have been a member that they do not name."""
    if metadata.state is LedgerState.CLOSED:
        return False
    return is_older or bookie in metadata.last_fragment.bookies


def _judged(doubtful: Iterable[int]) -> tuple[LimboPhase, frozenset[int]]:
    doubts = frozenset(doubtful)
    return (LimboPhase.SETTLING if doubts else LimboPhase.OVER), doubts
