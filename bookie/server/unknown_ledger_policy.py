"""Pure: about which ledgers that were never here a bookie makes promises.

A fence, or an entry, of a ledger that a bookie never saw makes it here, with the key that came with
it: recovery relies on that (rule 29). But a ledger's metadata, with its key, is written before
anybody learns its id, so a request for one that the metadata store does not know, or with
another key, is for one that was deleted, or a guess. To guess the next ids would be to
fence ledgers in advance, so a bookie asks, once for each ledger. If the store does not answer, it
takes what comes: up to a bound, as nobody can make ledgers meanwhile.

What is refused is never denied: a fence that was not taken gets no answer that recovery counts.
"""

from typing import Final

UNASKED_MAX: Final = 1000
"""Ledgers that are taken while the store does not answer."""


class UnknownLedgerPolicy:
    def __init__(self, *, unmade_max: int = 0) -> None:
        """*unmade_max*: so many ledgers are taken although the store does not know them."""
        self._unmade_left = unmade_max
        self._unasked_left = UNASKED_MAX

    def admits(self, *, found: bool | None) -> bool:
        """Return whether a ledger that was never here is taken. *found*: whether the store has it
        with this key, None if it did not say."""
        if found is None:
            admitted = self._unasked_left > 0
            self._unasked_left -= admitted
            return admitted
        self._unasked_left = UNASKED_MAX
        if found:
            return True
        admitted = self._unmade_left > 0
        self._unmade_left -= admitted
        return admitted
