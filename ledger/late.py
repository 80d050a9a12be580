"""Names of a package that are imported when somebody asks for them.

A package's `__init__` is run by whoever imports any of its modules. Most need little of it, and all
of it takes long: a client, its protocols and their libraries.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def late_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for *package*, whose public names are in the modules *homes*."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(homes[name]), name)
        setattr(import_module(package), name, found)
        return found

    return find
