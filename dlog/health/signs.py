"""Problems of a cluster, their severity, and what to do about them. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Protocol

from ledger.values import counted

NAMED_MAX: Final = 5
"""A sentence names so many of what it counts."""
KIND_MAX: Final = 20
"""So many signs of one kind are told one by one."""


class Gravity(IntEnum):
    NOTE = 1
    """Nothing is wrong; somebody may want to know."""
    WRONG = 2
    """Somebody should see to it: copies lack, or less would be borne than was planned for."""
    GRAVE = 3
    """Now: records cannot be written or read, or may be lost."""


@dataclass(frozen=True, slots=True)
class Sign:
    gravity: Gravity
    kind: str
    """In a word or two that stays the same, for scripts."""
    what: str
    """One sentence."""
    action: str
    """Advice; empty if there is nothing to be done."""
    bookies: tuple[str, ...] = ()
    """Those that are out of reach, if it says so."""
    due_to: frozenset[frozenset[str]] = frozenset()
    """It follows from that bookies are out of reach if of each of these groups one is; empty: it
    has another cause."""
    consequences: tuple["Sign", ...] = ()
    """The gravest first. A sign is as grave as the gravest of them."""

    @property
    def is_wrong(self) -> bool:
        return self.gravity >= Gravity.WRONG


class Facts(Protocol):
    """The results of one check."""

    def signs(self) -> Iterator[Sign]:
        """Yield what is wrong, if anything is."""

    def summary(self) -> str:
        """Return the whole in a few words, whether it is well or not."""

    def unseen(self) -> Iterator[str]:
        """Yield what was not looked at, as there was too much of it."""

    def shown(self) -> Mapping[str, object]:
        """Return the facts as values for JSON. Names stay the same."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The end of one check: *facts*, or the reason why there are none."""

    name: str
    facts: Facts | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    checked: tuple[CheckResult, ...]

    @property
    def signs(self) -> Sequence[Sign]:
        """The gravest first; of one kind and gravity `KIND_MAX`, and then how many more. What two
        checks saw is said once, and what follows from another sign stands below that one."""
        return _ordered(_joined(sign for one in self.checked for sign in _signs(one)))

    @property
    def healthy(self) -> bool:
        """Return True if no problem was found in what was checked."""
        return not any(sign.is_wrong for sign in self.signs)

    @property
    def unseen(self) -> Sequence[str]:
        return [
            words for one in self.checked if one.facts is not None for words in one.facts.unseen()
        ]

    def shown(self) -> dict[str, object]:
        return {
            "healthy": self.healthy,
            "signs": [
                {**_shown(sign), "consequences": [_shown(each) for each in sign.consequences]}
                for sign in self.signs
            ],
            "not_looked_at": list(self.unseen),
            **{
                one.name: None if one.facts is None else dict(one.facts.shown())
                for one in self.checked
            },
        }


def named(names: Sequence[object]) -> str:
    """Return the first few of *names*, and how many there are besides."""
    more = len(names) - NAMED_MAX
    listed = ", ".join(map(str, names[:NAMED_MAX]))
    return f"{listed} and {more} more" if more > 0 else listed


def are(count: int, one: str) -> str:
    """Return "1 bookie is", "2 bookies are"."""
    return f"{counted(count, one)} {'is' if count == 1 else 'are'}"


def _shown(sign: Sign) -> dict[str, object]:
    return {
        "gravity": sign.gravity.name.lower(),
        "kind": sign.kind,
        "what": sign.what,
        "action": sign.action,
    }


def _joined(signs: Iterable[Sign]) -> Iterator[Sign]:
    """Yield *signs*, each once; those that follow from others below one of these."""
    once = list(dict.fromkeys(signs))
    causes = [sign for sign in once if sign.bookies]
    out_of_reach = frozenset(bookie for cause in causes for bookie in cause.bookies)
    below: dict[Sign, list[Sign]] = {}
    for sign in once:
        if sign.due_to and not any(map(out_of_reach.isdisjoint, sign.due_to)):
            named_ones = frozenset[str]().union(*sign.due_to)
            cause = next(cause for cause in causes if not named_ones.isdisjoint(cause.bookies))
            below.setdefault(cause, []).append(sign)
    alone = set(once).difference(*below.values())
    for sign in once:
        if sign in alone:
            consequences = tuple(_ordered(below.get(sign, ())))
            gravity = max(each.gravity for each in (sign, *consequences))
            yield replace(sign, gravity=gravity, consequences=consequences)


def _ordered(signs: Iterable[Sign]) -> list[Sign]:
    kinds: dict[tuple[Gravity, str], list[Sign]] = {}
    for sign in signs:
        kinds.setdefault((sign.gravity, sign.kind), []).append(sign)
    gravest_first = sorted(kinds.values(), key=lambda kind: -kind[0].gravity)
    return [sign for kind in gravest_first for sign in _bounded(kind)]


def _bounded(signs: Sequence[Sign]) -> Iterator[Sign]:
    yield from signs[:KIND_MAX]
    if len(signs) > KIND_MAX:
        what = f"{len(signs) - KIND_MAX} more are like the last one"
        yield replace(
            signs[-1], what=what, action="The JSON output of this command lists all of them."
        )


def _signs(one: CheckResult) -> Iterator[Sign]:
    if one.facts is not None:
        yield from one.facts.signs()
    else:
        yield Sign(
            Gravity.GRAVE,
            f"{one.name}-unknown",
            f"the state of {one.name.replace('_', ' ')} is unknown: {one.trouble}",
            "Fix that first, then run the check again.",
        )
