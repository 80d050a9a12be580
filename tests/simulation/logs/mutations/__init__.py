"""Bugs of the log layer: of DistributedLog, likely ones, and those that this simulator found here.

#n is an issue or pull request of DistributedLog or BookKeeper; "seeds" is the order of steps of
the documents that the log layer follows. An own bug was in this project until a seed found it.
"""

from tests.simulation.logs.mutations import (
    administering,
    archiving,
    asking,
    committing,
    electing,
    ends,
    keeping,
    lagging,
    ledgers,
    naming,
    phases,
    reading,
    reopening,
    restores,
    tables,
    taking_over,
    writing,
)

__all__ = [
    "administering",
    "archiving",
    "asking",
    "committing",
    "electing",
    "ends",
    "keeping",
    "lagging",
    "ledgers",
    "naming",
    "phases",
    "reading",
    "reopening",
    "restores",
    "tables",
    "taking_over",
    "writing",
]
