"""Who leads and whom to watch, decided from the names of the candidates alone.

Each candidate is a sequential ephemeral node ``<token>-<sequence>`` under the log's path. The
lowest sequence leads. Every other candidate watches the one just below its own, so that a
node that goes wakes one candidate and not the herd.

The token is random, a new one for each candidacy: a candidate whose create got no answer
finds its own node again by it, and one that made two nodes so keeps the lower and gives up
the others.

Pure: no clock, no I/O. Nothing here fences; an election only suggests
(docs/architecture.md, "Decisions").
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote

LEADERS_PATH: Final = "/leaders"
SEQUENCE_DIGITS: Final = 10


def leaders_path(log: str) -> str:
    """Return the path under which the candidates of *log* stand; the name is one component."""
    return f"{LEADERS_PATH}/{quote(log, safe='')}"


def node_prefix(token: str) -> str:
    """Return the name to which the store appends the sequence number."""
    return f"{token}-"


@dataclass(frozen=True, slots=True, order=True)
class Candidacy:
    """One node of the election; ordered by sequence."""

    sequence: int
    name: str
    token: str

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Return what *name* says, or None if no candidate is named so."""
        token, _, digits = name.rpartition("-")
        numbered = len(digits) >= SEQUENCE_DIGITS and digits.isascii() and digits.isdecimal()
        if not (token and numbered):
            return None
        return cls(int(digits), name, token)


@dataclass(frozen=True, slots=True)
class Absent:
    """No node is ours: it was never made, or it is gone."""


@dataclass(frozen=True, slots=True)
class Elected:
    """Ours is the lowest node."""

    own: Candidacy
    surplus: tuple[Candidacy, ...] = ()
    """Other nodes of ours, to be deleted."""


@dataclass(frozen=True, slots=True)
class Following:
    """Others stand before us; when *predecessor* goes it is time to look again."""

    own: Candidacy
    predecessor: Candidacy
    surplus: tuple[Candidacy, ...] = ()


Standing = Absent | Elected | Following


def candidacies(children: Iterable[str]) -> list[Candidacy]:
    """Return the candidates among the names *children*, first the one who leads."""
    return sorted(found for name in children if (found := Candidacy.parse(name)) is not None)


def standing(children: Iterable[str], token: str) -> Standing:
    """Return how the candidate with *token* stands among the nodes *children*."""
    candidates = candidacies(children)
    mine = [candidate for candidate in candidates if candidate.token == token]
    if not mine:
        return Absent()
    own, surplus = mine[0], tuple(mine[1:])
    index = candidates.index(own)
    if index == 0:
        return Elected(own, surplus)
    return Following(own, candidates[index - 1], surplus)
