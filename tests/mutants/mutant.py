"""What a mutant is: a place of the code that says something else, and the test that fails then."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
VARIABLE: Final = "DLOG_TEST_MUTANT"
"""Of the environment: the mutant that a process is to have, as JSON."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    """A sentence: what the code does wrong."""
    file: str
    """Of production code, from the root of the repository."""
    old: str
    """Stands in *file* once."""
    new: str
    """Stands there instead."""
    test: str
    """The test that has to fail with it, as pytest names it."""

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")

    def source(self) -> str:
        """Return the text of *file* with the bug in it. Raises ValueError if it has no place."""
        text = (ROOT / self.file).read_text()
        found = text.count(self.old)
        if found != 1:
            reason = f"{self.file} has {found} places that say {self.old!r}; adapt the mutant"
            raise ValueError(f"{self.name}: {reason}")
        return text.replace(self.old, self.new)


MUTANTS: Final[dict[str, Mutant]] = {}
"""All of them by name, in the order in which they are written down."""


def mutant(name: str, file: str, *, old: str, new: str, test: str) -> None:
    """Enter a mutant into the table."""
    assert name not in MUTANTS, f"two mutants are called {name!r}"
    MUTANTS[name] = Mutant(name, file, old, new, test)
