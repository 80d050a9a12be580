"""TLA+ ValidateFragments: metadata only moves forward.

Versions grow; states go OPEN -> IN_RECOVERY -> CLOSED; CLOSED never changes again (it is written
again, as it is, by a bookie that is about to evict the ledger); a fragment that was followed by
another one keeps its place and its bookies; no fragment begins behind the end of a CLOSED ledger,
where it would hide a hole. Where somebody repairs, bookies of what is settled may be replaced, and
nothing else with them (`moves_change_one_place`).
"""

from dataclasses import replace
from itertools import pairwise

from ledger.metadata import LedgerMetadata, LedgerState
from tests.simulation.oracle import LedgerHistory

_NAME = "fragments_strictly_ordered"


def broken(history: LedgerHistory) -> str | None:
    checked = history.checked.get(_NAME, 0)
    if checked == len(history.metadata):
        return None
    history.checked[_NAME] = len(history.metadata)
    for (old_version, old), (new_version, new) in pairwise(history.metadata[max(checked - 1, 0) :]):
        if new_version <= old_version:
            return f"version went from {old_version} to {new_version}"
        story = None if history.may_move and is_move(old, new) else _change(old, new)
        if story is not None:
            return story
    return _end(history.recorded)


def is_move(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    """Return whether *new* differs from *old* by who is in fragments that were settled, only."""
    if old.fragments == new.fragments or replace(new, fragments=old.fragments) != old:
        return False
    if [each.first_entry for each in old.fragments] != [each.first_entry for each in new.fragments]:
        return False
    return all(
        old.settled_end(before) is not None
        for before, after in zip(old.fragments, new.fragments, strict=True)
        if before != after
    )


def _change(old: LedgerMetadata, new: LedgerMetadata) -> str | None:
    if old.state is LedgerState.CLOSED:
        return None if new == old else "CLOSED metadata were changed"
    if new.state < old.state:
        return f"state went from {old.state.name} to {new.state.name}"
    kept = old.fragments[:-1]
    if new.fragments[: len(kept)] != kept:
        return f"a finished fragment changed: {old.fragments} became {new.fragments}"
    if new.last_fragment.first_entry < old.last_fragment.first_entry:
        return f"the last fragment moved back: {old.fragments} became {new.fragments}"
    return None


def _end(metadata: LedgerMetadata) -> str | None:
    if metadata.last_entry is None or metadata.last_fragment.first_entry <= metadata.last_entry + 1:
        return None
    return (
        f"closed at {metadata.last_entry}, but the last fragment begins at "
        f"{metadata.last_fragment.first_entry}"
    )
