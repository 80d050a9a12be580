"""What is done again after a pause, in the order in which it was put off, and how often it was."""

from typing import Generic, Protocol, TypeVar


class Indexed(Protocol):
    """Something about the bookie at *index* of an ensemble."""

    @property
    def index(self) -> int: ...


T = TypeVar("T", bound=Indexed)


class Retries(Generic[T]):
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._waiting: list[tuple[float, T]] = []
        self._tries: dict[tuple[type[T], int], int] = {}

    def put_off(self, what: T, now: float) -> None:
        self._waiting.append((now + self._pause_s, what))

    def try_again(self, what: T, now: float, *, tries_max: int) -> bool:
        """Put *what* off; return False, and do not, if its like had its tries at this bookie."""
        of = (type(what), what.index)
        self._tries[of] = self._tries.get(of, 0) + 1
        if self._tries[of] >= tries_max:
            return False
        self.put_off(what, now)
        return True

    def succeeded(self, what: type[T], index: int) -> None:
        """Start counting tries from zero."""
        self._tries.pop((what, index), None)

    def forget(self, kind: type[T] | None = None) -> None:
        """Drop what was put off: all, or what is of *kind*."""
        self._waiting = [each for each in self._waiting if kind and not isinstance(each[1], kind)]

    def due(self, now: float) -> list[T]:
        """Take out and return what is to be done by *now*."""
        due = [what for at, what in self._waiting if at <= now]
        self._waiting = [(at, what) for at, what in self._waiting if at > now]
        return due

    def deadline(self) -> float | None:
        return min((at for at, _ in self._waiting), default=None)
