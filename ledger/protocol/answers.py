"""What a reader may believe of a bookie's answer: frames whose digest is right, nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ledger.entry import Header, authenticate, verify_frame, verify_proof
from ledger.errors import DamagedEntry
from ledger.requests import LacAnswer, ReadAnswer, Status


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


def verified(answer: ReadAnswer, ledger_id: int, mac: bytes | None) -> Found:
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


def proven_lac(proof: bytes, ledger_id: int, mac: bytes | None) -> int:
    """Return the LAC that *proof* carries, -1 if it proves none."""
    if not proof:
        return -1
    try:
        return verify_proof(proof, ledger_id, mac).last_add_confirmed
    except DamagedEntry:
        return -1


def fence_is_certain(answer: LacAnswer) -> bool:
    """Return True iff the bookie said that its fence is durable (rule 40).

    Errors, time-outs and refusals are no promise."""
    return answer.fenced and answer.status in {Status.OK, Status.NO_SUCH_LEDGER, Status.FENCED}
