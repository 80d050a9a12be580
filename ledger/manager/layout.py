"""Pure: the path of a ledger's metadata by its id, and back, in the three layouts.

flat                /ledgers/L0000000001
hierarchical        /ledgers/00/0000/L0001              2-4-4 digits, as BookKeeper has it
longhierarchical    /ledgers/000/0000/0000/0000/L0001   3-4-4-4-4 digits, 63-bit ids
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ledger.ids import LedgerId
from ledger.metastore.ops import INSTANCE

__all__ = ["DEFAULT_LAYOUT", "INSTANCE", "LAYOUTS", "LEDGERS", "Layout"]

LEDGERS: Final = "/ledgers"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the digits of an id are cut into the names of nodes; the last name begins with L."""

    name: str
    digits: tuple[int, ...]
    sequential_ids: bool
    """Whether ids come from sequential nodes (10 digits), or from a counter (63 bits)."""

    @property
    def id_max(self) -> int:
        return min(int("9" * sum(self.digits)), 2**63 - 1)

    @property
    def depth(self) -> int:
        """Levels of nodes below /ledgers."""
        return len(self.digits)

    def path(self, ledger_id: int) -> str:
        """Return the path of *ledger_id*'s metadata."""
        assert 0 <= ledger_id <= self.id_max, f"ledger id {ledger_id} does not fit {self.name}"
        digits = str(ledger_id).zfill(sum(self.digits))
        names, start = [], 0
        for count in self.digits:
            names.append(digits[start : start + count])
            start += count
        names[-1] = "L" + names[-1]
        return "/".join((LEDGERS, *names))

    def is_name(self, name: str, level: int) -> bool:
        """Return True iff *name* may stand at *level* (0: directly below /ledgers)."""
        if level == self.depth - 1:
            if not name.startswith("L"):
                return False
            name = name[1:]
        return len(name) == self.digits[level] and name.isascii() and name.isdigit()

    def ledger_id(self, names: tuple[str, ...]) -> LedgerId:
        """Return the id whose path has *names* below /ledgers."""
        return LedgerId(int("".join(names).replace("L", "")))


FLAT: Final = Layout("flat", (10,), sequential_ids=True)
HIERARCHICAL: Final = Layout("hierarchical", (2, 4, 4), sequential_ids=True)
LONG_HIERARCHICAL: Final = Layout("longhierarchical", (3, 4, 4, 4, 4), sequential_ids=False)

LAYOUTS: Final[Mapping[str, Layout]] = {
    layout.name: layout for layout in (FLAT, HIERARCHICAL, LONG_HIERARCHICAL)
}
DEFAULT_LAYOUT: Final = LONG_HIERARCHICAL.name
