"""Whose a ledger is, and how it is spread, as bookies remember it."""

from typing import NamedTuple


class Owned(NamedTuple):
    """What has to be known of a ledger."""

    log: str | None
    """None: it belongs to none."""
    ensemble: int
    write_quorum: int
