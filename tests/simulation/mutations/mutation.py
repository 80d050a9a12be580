"""What a mutation is: a bug by name, and a way to have it for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_INHERITED: Final = object()


class Patch:
    """Replaces attributes of classes and modules; `undo` puts all of them back."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, object]] = []

    def set(self, owner: object, name: str, value: object) -> None:
        """Let *owner* have *value* under *name*, which it has already or inherits."""
        assert hasattr(owner, name), f"{owner} has no {name} any more; adapt the mutation"
        self._before.append((owner, name, vars(owner).get(name, _INHERITED)))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@dataclass(frozen=True, slots=True)
class Mutation:
    name: str
    reference: str
    apply: Callable[[Patch], None]
    scenario: str
    """Which simulator has to find it: a name of `WORKLOADS`."""
    test: str
    """The test that has to fail with it, as pytest names it; empty: only a simulator finds it."""
    drawn: bool
    """Whether a simulator has to find it, too."""


MUTATIONS: Final[dict[str, Mutation]] = {}
"""All of them, in the order in which they are written down."""


def mutation(
    reference: str,
    *,
    logs: bool = False,
    repair: bool = False,
    partitions: bool = False,
    gateways: bool = False,
    replicas: bool = False,
    test: str = "",
    drawn: bool = True,
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Enter the decorated function into the table, under its own name.

    What no simulator can draw, or only by a rare chance, is not *drawn*: a *test* finds it."""

    def enter(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__
        assert name not in MUTATIONS, f"two mutations are called {name}"
        assert test or drawn, f"nothing has to find {name}"
        chosen = {
            "logs": logs,
            "repair": repair,
            "partitions": partitions,
            "gateways": gateways,
            "replicas": replicas,
        }
        scenario = next((each for each, is_chosen in chosen.items() if is_chosen), "ledgers")
        MUTATIONS[name] = Mutation(name, reference, apply, scenario, test, drawn)
        return apply

    return enter


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """Have the bug *name* within the block."""
    patch = Patch()
    try:
        MUTATIONS[name].apply(patch)
        yield
    finally:
        patch.undo()
