"""How long to wait before the next try: delays that double up to a bound; pure."""


class Backoff:
    """Returns *first_s*, twice that, and so on, but never more than *max_s* seconds."""

    __slots__ = ("_first_s", "_max_s", "_next_s")

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._next_s = first_s

    def next(self) -> float:
        """Return the seconds to wait before the next try."""
        delay_s = min(self._next_s, self._max_s)
        self._next_s = 2 * delay_s
        return delay_s

    def reset(self) -> None:
        """Begin again with the first delay: a try has succeeded."""
        self._next_s = self._first_s
