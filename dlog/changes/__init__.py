"""The log of changes, `_audit`: orders of operators, and their outcomes."""

from dlog.changes.audit_log import (
    CHANGES_MAX,
    ChangeNotRecorded,
    Mode,
    follow_changes,
    last_changes,
    ourselves,
    recorded,
)
from dlog.changes.change import LOG, Change, ChangeOutcome

__all__ = [
    "CHANGES_MAX",
    "LOG",
    "Change",
    "ChangeNotRecorded",
    "ChangeOutcome",
    "Mode",
    "follow_changes",
    "last_changes",
    "ourselves",
    "recorded",
]
