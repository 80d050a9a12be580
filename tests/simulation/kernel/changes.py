"""Changes to a drawn world, in one line of text: what shrinking found, and a command repeats.

`entries=5,weather.loss=0,pauses_s=first,fault3=0,luck=2` is: five entries, no message lost, of
several pauses always the first one, the third fault left out, and another source of chance.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Self, TypeVar

P = TypeVar("P")
FIRST: Final = "first"
LIVES: Final = "lives"
"""The fate of a process to which nothing happens."""
WORLDS_WITHIN: Final = frozenset({"floor", "settings", "weather"})
RANGES: Final = frozenset({"fsync_s", "checkpoint_s"})
"""Pairs of which the second is needed."""
KEPT: Final = frozenset({"delay_min_s", "delay_max_s", "slow_max_s"})
SAVES_MOST: Final = frozenset({"faults", "faults_s", "ledgers", "logs", "entries", "bursts"})
_FAULT: Final = "fault"
_LUCK: Final = "luck"


@dataclass(frozen=True, slots=True)
class Changes:
    values: tuple[tuple[str, str], ...] = ()
    """New values of the profile, by their path."""
    left_out: frozenset[int] = frozenset()
    """Numbers of faults."""
    luck: int = 0
    """Not 0: chance is another one from the first step on."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ValueError`."""
        values, left_out, luck = dict[str, str](), set[int](), 0
        for part in filter(None, text.split(",")):
            key, _, value = part.partition("=")
            if not value:
                raise ValueError(f"{part!r} is no change; say for example entries=5 or fault3=0")
            if key == _LUCK:
                luck = int(value)
            elif key.startswith(_FAULT) and key.removeprefix(_FAULT).isdigit():
                left_out.add(int(key.removeprefix(_FAULT)))
            else:
                values[key] = value
        return cls(tuple(sorted(values.items())), frozenset(left_out), luck)

    def __str__(self) -> str:
        parts = [f"{key}={value}" for key, value in self.values]
        parts += [f"{_FAULT}{number}=0" for number in sorted(self.left_out)]
        return ",".join(parts + [f"{_LUCK}={self.luck}"] * bool(self.luck))

    def __bool__(self) -> bool:
        return bool(self.values or self.left_out or self.luck)

    def with_value(self, key: str, value: str) -> Self:
        return replace(self, values=tuple(sorted({**dict(self.values), key: value}.items())))

    def applied_to(self, profile: P) -> P:
        """Raises `AttributeError` for a path that *profile* has not."""
        for key, value in self.values:
            profile = _changed(profile, key.split("."), value)
        return profile


UNCHANGED: Final = Changes()


def simplifications(profile: object) -> list[tuple[str, str]]:
    """Return how *profile* could be simpler, what saves most steps first.

    What a world is made of stays: quorums, storage, configuration of clients."""
    found = list(_simplifications(profile, ""))
    return sorted(found, key=lambda change: change[0].rpartition(".")[2] not in SAVES_MOST)


def _simplifications(profile: object, path: str) -> Iterator[tuple[str, str]]:
    assert is_dataclass(profile)
    for each in fields(profile):
        value, key = getattr(profile, each.name), f"{path}{each.name}"
        if is_dataclass(value):
            if each.name in WORLDS_WITHIN:
                yield from _simplifications(value, f"{key}.")
        elif isinstance(value, tuple):
            if len(value) > 1 and each.name not in RANGES:
                yield key, FIRST
        elif isinstance(value, str):
            if each.name.endswith("fate") and value != LIVES:
                yield key, LIVES
        elif isinstance(value, bool):
            if value:
                yield key, "0"
        elif isinstance(value, int) and value > 0:
            yield from ((key, str(less)) for less in sorted({0, 1, value // 2} - {value}))
        elif isinstance(value, float) and value > 0.0 and each.name not in KEPT:
            yield key, "0"
            if each.name == "faults_s":
                yield key, f"{value / 2:.2g}"


def _changed(profile: Any, path: list[str], value: str) -> Any:
    name, *rest = path
    now = getattr(profile, name)
    if rest:
        return replace(profile, **{name: _changed(now, rest, value)})
    new: object
    if isinstance(now, tuple):
        new = now[:1]
    elif isinstance(now, str):
        new = value
    else:
        new = bool(int(value)) if isinstance(now, bool) else type(now)(float(value))
    return replace(profile, **{name: new})
