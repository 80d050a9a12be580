"""Which of the drawn faults happen: all, but those that shrinking left out."""


class FaultPlan:
    """Numbers faults as they are drawn. One that is left out is drawn all the same, so that the
    others stay what they are."""

    def __init__(self) -> None:
        self.left_out: frozenset[int] = frozenset()
        self.drawn = 0

    def happens(self) -> bool:
        """Whether the next fault, which was drawn just now, happens."""
        self.drawn += 1
        return self.drawn not in self.left_out
