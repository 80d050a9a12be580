"""What a reader may believe of a bookie's answer: frames whose digest is right, nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ledger.entry import Header, MacKey, authenticate, verify_frame, verify_proof
from ledger.errors import DamagedEntry
from ledger.ids import BookieId
from ledger.quorum import Quorum, holds
from ledger.requests import LacAnswer, ReadAnswer, Status

HINT_ENTRIES_MAX: Final = 1024
"""How many entries of one answer are looked at for missing ones."""


class Fault(Enum):
    DAMAGED = "damaged"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class RepairHint:
    """A replica that has not what it should have: the ledger can be read, but repair it.

    A hint only. An entry may be missing because it is still on its way to the last of its
    bookies, or because re-replication moved it since the metadata was read."""

    bookie: BookieId
    fault: Fault
    entry_id: int
    """The first one."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Found:
    """A read's answer after every frame was verified.

    *considered* is cut below the first frame that did not verify: a damaged frame is an
    error of that bookie, never the absence of the entry (rule 54)."""

    status: Status
    headers: Mapping[int, Header] = field(default_factory=dict)
    frames: Mapping[int, memoryview] = field(default_factory=dict)
    considered: int = -1
    damaged: int | None = None
    last_add_confirmed: int = -1
    fenced: bool = False


def verified(answer: ReadAnswer, ledger_id: int, mac: MacKey) -> Found:
    """Return what *answer* proves. Its LAC counts only if its proof verifies (rule 15)."""
    headers: dict[int, Header] = {}
    frames: dict[int, memoryview] = {}
    considered, damaged = answer.considered, None
    lac = proven_lac(answer.lac_proof, ledger_id, mac)
    for entry_id, frame in answer.each():
        try:
            header = verify_frame(frame, ledger_id, entry_id)
        except DamagedEntry:
            header = None
        if header is None or not authenticate(frame, header, mac):
            damaged = entry_id
            considered = min(considered, entry_id - 1)
            break
        headers[entry_id], frames[entry_id] = header, frame
        lac = max(lac, header.last_add_confirmed)
    return Found(answer.status, headers, frames, considered, damaged, lac, answer.fenced)


def repair_hints(
    found: Found,
    *,
    bookie: BookieId,
    index: int,
    asked: range,
    confirmed: int,
    quorum: Quorum,
) -> tuple[RepairHint, ...]:
    """Return what the answer of *bookie*, at *index*, says about its own replicas (rule 54).

    *confirmed*: up to where entries were known to be confirmed when the bookie was asked."""
    hints: list[RepairHint] = []
    if found.damaged is not None:
        hints.append(RepairHint(bookie, Fault.DAMAGED, found.damaged))
    considered = asked[-1] if found.status is Status.NO_SUCH_LEDGER else found.considered
    last = min(considered, confirmed, asked[-1], asked[0] + HINT_ENTRIES_MAX - 1)
    missing = [
        entry_id
        for entry_id in range(asked[0], last + 1)
        if entry_id not in found.headers and holds(index, entry_id, quorum)
    ]
    if missing:
        hints.append(RepairHint(bookie, Fault.MISSING, missing[0], len(missing)))
    return tuple(hints)


def proven_lac(proof: bytes, ledger_id: int, mac: MacKey) -> int:
    """Return the LAC that *proof* carries, -1 if it proves none."""
    if not proof:
        return -1
    try:
        return verify_proof(proof, ledger_id, mac).last_add_confirmed
    except DamagedEntry:
        return -1


def fence_is_certain(answer: LacAnswer) -> bool:
    """Return True iff the bookie said that its fence is durable (rule 40).

    Errors, time-outs and refusals are no promise. A bookie in limbo fences like any other: what
    it may have lost it does not deny, and from now on it takes nothing."""
    return answer.fenced and answer.status in {
        Status.OK,
        Status.NO_SUCH_LEDGER,
        Status.FENCED,
        Status.UNKNOWN,
    }
