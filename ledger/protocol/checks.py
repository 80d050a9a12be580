"""The switch of invariant checks whose cost shows: they run with each entry.

Cheap ones are always asserted, and so is all that is checked at rare events. Tests and simulators
turn on the others."""

from typing import Final


class Checks:
    def __init__(self) -> None:
        self.costly = False


CHECKS: Final = Checks()
