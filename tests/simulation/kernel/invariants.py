"""Invariants of a package, one module each: `broken(...)` returns None, or what is wrong."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

Broken = Callable[..., str | None]


class InvariantError(AssertionError):
    """An invariant does not hold; the simulation stops here."""

    def __init__(self, invariant: str, of: str, story: str) -> None:
        super().__init__(f"{invariant}: {of}: {story}")


def modules_of(package: str, path: list[str]) -> dict[str, ModuleType]:
    """Return the modules of *package*, which lies at *path*, by name and in its order."""
    names = sorted(module.name for module in iter_modules(path))
    return {name: import_module(f"{package}.{name}") for name in names}


def check(invariants: Mapping[str, Broken], about: str, *subject: object) -> None:
    """Give *subject* to each of *invariants*. Raises `InvariantError`, which says it is *about*."""
    for name, broken in invariants.items():
        story = broken(*subject)
        if story is not None:
            raise InvariantError(name, about, story)


def meaning(module: ModuleType) -> str:
    """Return what an invariant says, by the first paragraph of its docstring."""
    return " ".join((module.__doc__ or "").strip().split("\n\n")[0].split())
