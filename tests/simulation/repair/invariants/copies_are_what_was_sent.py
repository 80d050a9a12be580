"""What a worker sends to a bookie is what the writer sent, byte for byte."""

from tests.simulation.repair.oracle import Copied, Happening, Repairs


def broken(repairs: Repairs, what: Happening) -> str | None:
    if not isinstance(what, Copied):
        return None
    sent, start = repairs.history(what.ledger_id).sent, 0
    for entry, length in zip(what.entries, what.lengths, strict=True):
        if entry >= len(sent) or what.frames[start : start + length] != sent[entry]:
            return (
                f"{what.by} sends other bytes of entry {entry} of ledger {what.ledger_id} to "
                f"{what.bookie} than its writer sent"
            )
        start += length
    return None
