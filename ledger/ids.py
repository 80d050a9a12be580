"""Identifiers of the ledger layer, each a type of its own so that they cannot be mixed up."""

from dataclasses import dataclass
from typing import Final, NewType

LedgerId = NewType("LedgerId", int)
"""64-bit, non-negative, unique in a namespace and never reused (rule 6)."""

EntryId = NewType("EntryId", int)
"""Dense from 0 in one ledger."""

BookieId = NewType("BookieId", str)
"""Name of a bookie for the whole life of its data; ``host:port`` unless configured."""


@dataclass(frozen=True, slots=True)
class BookieIdentity:
    """Which of all bookies of one name, in whichever cluster."""

    instance: str
    """Of the namespace, random."""
    identity: str
    """Random, of its data, as in its cookie."""
    life: int = 0
    """Which start of these data, as its cookie counts them; 0: not known."""

    def of(self, bookie: str) -> str:
        """Return who *bookie* is, in words."""
        return f"bookie {bookie} of cluster {self.instance}"

    def why_not(self, meant: "BookieIdentity", bookie: str) -> str | None:
        """Return why this is not the *bookie* that is *meant*; None: it is, in the life that is
        meant or a later one."""
        if self.instance != meant.instance:
            return f"here is {self.of(bookie)}, and {meant.of(bookie)} was meant; check the address"
        if self.identity != meant.identity:
            return (
                f"here is {self.of(bookie)} with data {self.identity or 'unknown'}, and the one "
                f"with data {meant.identity or 'unknown'} was meant; check the address"
            )
        if self.life < meant.life:
            return (
                f"here is start {self.life} of {self.of(bookie)}, and start {meant.life} was "
                "meant: another process has its data now; end this one"
            )
        return None


NOBODY: Final = BookieIdentity("", "")
"""No bookie is it."""
NO_ENTRY: Final = EntryId(-1)
"""Stands for "before the first entry": the last entry of an empty ledger, the first LAC."""
