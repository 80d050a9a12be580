"""TLA+ NoDivergenceBetweenClientAndMetaData: who learned CLOSED learned what is stored.

Last entry and length of every conclusion agree with the metadata store and with each other; so do
the fragments, but for members that were replaced since.
"""

from ledger.metadata import LedgerState
from tests.simulation.oracle import LedgerHistory

_NAME = "no_divergence_between_client_and_metadata"


def broken(history: LedgerHistory) -> str | None:
    metadata = history.recorded
    checked = history.checked.get(_NAME, 0)
    for who, concluded in history.conclusions[checked:]:
        if concluded.state is not LedgerState.CLOSED:
            return f"{who} learned the end of a ledger that is {concluded.state.name}"
        mine = (concluded.last_entry, concluded.length, concluded.fragments)
        stored = (metadata.last_entry, metadata.length, metadata.fragments)
        once = [(each.last_entry, each.length, each.fragments) for _, each in history.metadata]
        if mine != stored and mine not in once:
            return f"{who} believes (last entry, length, fragments) {mine}, stored is {stored}"
    history.checked[_NAME] = len(history.conclusions)
    return None
