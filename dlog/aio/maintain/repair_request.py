"""Hands what a verification found to repair: as marks, and what is marked its workers look at.

A mark is a suspicion. Replicas that differ and are each whole are not handed on: which of them is
right is for a person to say.
"""

from collections.abc import Iterable
from typing import assert_never

from dlog.protocol.verification import FragmentFault
from ledger.clock import now_ms
from ledger.entry_check import ReplicaFault
from ledger.ids import LedgerId
from ledger.mark import Lack, Reason
from ledger.mark_nodes import mark_ledger, ring
from ledger.metastore.port import MetadataStore


async def mark_faults(store: MetadataStore, faults: Iterable[FragmentFault]) -> int:
    """Mark the ledgers of *faults* that repair can make good; return how many those are.

    Raises `MetadataUnavailable`; then some may be marked, and it can be repeated."""
    lacks: dict[LedgerId, list[Lack]] = {}
    since_ms = now_ms()
    for fault in faults:
        reason = _reason_of(fault.fault)
        if reason is not None:
            lack = Lack(fault.bookie, reason, since_ms)
            lacks.setdefault(fault.ledger_id, []).append(lack)
    for ledger_id, found in lacks.items():
        await mark_ledger(store, ledger_id, found)
    if lacks:
        await ring(store)
    return len(lacks)


def _reason_of(fault: ReplicaFault) -> Reason | None:
    match fault:
        case ReplicaFault.MISSING:
            return Reason.MISSING
        case ReplicaFault.DAMAGED | ReplicaFault.UNREADABLE:
            return Reason.DAMAGED
        case ReplicaFault.DIFFERENT | ReplicaFault.REFUSED | ReplicaFault.UNREACHABLE:
            return None
        case _:
            assert_never(fault)
