"""The log of changes, `_audit`: what operators ordered, and what became of it."""

from dlog.changes.change import LOG, Change, Outcome
from dlog.changes.reader import CHANGES_MAX, follow_changes, last_changes
from dlog.changes.recorder import ChangeNotRecorded, Mode, ourselves, recorded

__all__ = [
    "CHANGES_MAX",
    "LOG",
    "Change",
    "ChangeNotRecorded",
    "Mode",
    "Outcome",
    "follow_changes",
    "last_changes",
    "ourselves",
    "recorded",
]
