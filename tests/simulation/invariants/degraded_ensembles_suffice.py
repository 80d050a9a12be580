"""What naming bookies that are away promises: those that are there suffice, and are all named.

In every write set so many are registered as the choice is made that entries can be acknowledged
(Qa), and a takeover can recover them (Qw - Qa + 1), though the others never come back. Those are
known, and only as many as are missing.
"""

from tests.simulation.oracle import DegradedChoice, LedgerHistory

_NAME = "degraded_ensembles_suffice"


def broken(history: LedgerHistory) -> str | None:
    checked = history.checked.get(_NAME, 0)
    history.checked[_NAME] = len(history.degraded_choices)
    for choice in history.degraded_choices[checked:]:
        story = story_of(choice)
        if story is not None:
            return story
    return None


def story_of(choice: DegradedChoice) -> str | None:
    """Return what is wrong with *choice*, or None."""
    wrong = _broken(choice)
    return wrong and f"{choice.who} chose {', '.join(choice.ensemble)}: {wrong}"


def _broken(choice: DegradedChoice) -> str | None:
    ensemble, quorum = choice.ensemble, choice.quorum
    if len(set(ensemble)) < len(ensemble) or len(ensemble) != quorum.ensemble:
        return "these are not E different bookies"
    strangers = [b for b in ensemble if b not in choice.available and b not in choice.known]
    if strangers:
        return f"nobody knows {', '.join(strangers)}"
    left_out = [bookie for bookie in choice.available if bookie not in ensemble]
    if left_out:
        return f"{', '.join(left_out)} is there, and was left out"
    needed = max(quorum.ack, quorum.write - quorum.ack + 1)
    for first in range(len(ensemble)):
        members = [ensemble[(first + i) % len(ensemble)] for i in range(quorum.write)]
        there = [bookie for bookie in members if bookie in choice.available]
        if len(there) < needed:
            return f"of the write set {', '.join(members)} only {', '.join(there)} is there"
    return None
