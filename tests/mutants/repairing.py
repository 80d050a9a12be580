"""Bugs of repair: what is not settled is touched, somebody else's change undone, a loss denied."""

from tests.mutants.mutant import mutant

_SWAPS = "tests/ledger/test_metadata_swaps.py::test_"

mutant(
    "swaps a member of an open ledger's last fragment",
    "ledger/metadata.py",
    old="            return SwapRefusal.UNSETTLED\n",
    new="            pass\n",
    test=_SWAPS + "the_last_fragment_is_edited_only_in_a_closed_ledger",
)
mutant(
    "swaps whoever stands at the index",
    "ledger/metadata.py",
    old="        if bookies[index] != old:\n",
    new="        if False:\n",
    test=_SWAPS + "what_may_not_be_swapped_says_why",
)
mutant(
    "swaps in who is a member already",
    "ledger/metadata.py",
    old="            return SwapRefusal.ALREADY_MEMBER\n",
    new="            pass\n",
    test=_SWAPS + "what_may_not_be_swapped_says_why",
)
mutant(
    "swaps in each fragment with that ensemble",
    "ledger/metadata.py",
    old="swapped if each is fragment else each for",
    new="swapped if each.bookies == bookies else each for",
    test=_SWAPS + "the_key_decides_which_fragment_it_is_and_not_its_ensemble",
)
