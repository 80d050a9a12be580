"""Identifiers of the ledger layer, each a type of its own so that they cannot be mixed up."""

from typing import Final, NewType

LedgerId = NewType("LedgerId", int)
"""64-bit, non-negative, unique in a namespace and never reused (rule 6)."""

EntryId = NewType("EntryId", int)
"""Dense from 0 in one ledger."""

BookieId = NewType("BookieId", str)
"""Name of a bookie for the whole life of its data; ``host:port`` unless configured."""

NO_ENTRY: Final = EntryId(-1)
"""Stands for "before the first entry": the last entry of an empty ledger, the first LAC."""
