"""What placement promises: bookies that differ, are there and may be picked; as many as there are.

Quarantined ones only as far as there are not enough others, but then they are picked: a
quarantine is a preference, and never a reason to do with fewer bookies.
"""

from tests.simulation.oracle import Choice, LedgerHistory

_NAME = "placement_keeps_its_promises"


def broken(history: LedgerHistory) -> str | None:
    checked = history.checked.get(_NAME, 0)
    history.checked[_NAME] = len(history.choices)
    for choice in history.choices[checked:]:
        story = _broken(choice)
        if story is not None:
            return f"{choice.who} {story}"
    return None


def _broken(choice: Choice) -> str | None:
    free = choice.free
    if len(set(choice.chosen)) < len(choice.chosen):
        return f"was given one bookie twice: {', '.join(choice.chosen)}"
    wrong = [bookie for bookie in choice.chosen if bookie not in free]
    if wrong:
        return f"was given {', '.join(wrong)}, which it must not use, or which is not there"
    if len(choice.chosen) < min(choice.wanted, len(free)):
        return (
            f"wanted {choice.wanted} bookies and was given {len(choice.chosen)}, "
            f"where {', '.join(free)} were free"
        )
    others = sum(bookie not in choice.avoid for bookie in free)
    quarantined = sum(bookie in choice.avoid for bookie in choice.chosen)
    if quarantined > max(0, choice.wanted - others):
        return f"was given {quarantined} quarantined bookies beside {others} others"
    return None
