"""Is what was found exactly what was expected? A pure function on pairs of (key, value)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a result. `exact` iff nothing is."""

    found: int
    lost: int
    doubled: int
    changed: int
    foreign: int

    @property
    def exact(self) -> bool:
        return self.lost + self.doubled + self.changed + self.foreign == 0


def compare(expected: Mapping[object, object], found: Iterable[tuple[object, object]]) -> Verdict:
    """Compare *found* with *expected*: each key is to come once, with its value.

    A key that comes again counts as doubled, one that nobody expects as foreign, and a value
    that is another one as changed; what never comes is lost."""
    seen: set[object] = set()
    count = doubled = changed = foreign = 0
    for key, value in found:
        count += 1
        if key not in expected:
            foreign += 1
        elif key in seen:
            doubled += 1
        elif expected[key] != value:
            changed += 1
        if key in expected:
            seen.add(key)
    return Verdict(count, len(expected) - len(seen), doubled, changed, foreign)
