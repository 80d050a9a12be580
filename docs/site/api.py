"""The page of the public names: which modules, and Sphinx takes the rest from their docstrings."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Final

from ledger.errors import LogError

_HEAD = """\
# API

Made of the docstrings. Names of `dlog` block; `dlog.aio` has the same for asyncio, with the same
meaning. Errors are on [a page of their own](errors.md), settings [too](settings.md). A name that
is not here is not public, even if Python lets you import it: [what is stable](stability.md).
"""

MODULES: Final[dict[str, str]] = {
    "dlog.aio": "Logs for asyncio: each call is described here, in full.",
    "dlog": "The same for threads, and the values that calls take and return.",
    "dlog.aio.admin": "Managing logs and their consumers, for asyncio.",
    "dlog.admin": "The same for threads.",
    "dlog.aio.maintain.janitor": "What looks after a namespace.",
    "dlog.spark": "Logs in Spark: [the guide](spark.md) has the options.",
    "dlog.testing": "Clusters inside a test.",
    "dlog.local.cluster": "Clusters of processes on this machine.",
    "ledger": "Ledgers without logs: [a guide](ledgers.md).",
}
"""Public modules, in the order of the page."""

_FIRST: Final = "Log"
"""What a reader looks for."""


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    seen: set[int] = set()
    for module, about in MODULES.items():
        parts.append(f"\n## `{module}`\n\n{about}\n\n```{{eval-rst}}\n.. py:module:: {module}\n\n")
        parts += _described(module, seen)
        parts.append("```\n")
    return "".join(parts)


def public_names(module: str) -> list[str]:
    """Return the public names of *module* that are not errors, what is looked for first."""
    home = importlib.import_module(module)
    names = getattr(home, "__all__", None) or [
        name
        for name, each in vars(home).items()
        if not name.startswith("_") and getattr(each, "__module__", "") == module
    ]
    public = [name for name in names if not _is_error(getattr(home, name))]
    return sorted(public, key=lambda name: name != _FIRST)


def _described(module: str, seen: set[int]) -> Iterator[str]:
    home = importlib.import_module(module)
    for name in public_names(module):
        each = getattr(home, name)
        if id(each) in seen or inspect.ismodule(each):
            continue  # one name, described where it comes first
        seen.add(id(each))
        if inspect.isclass(each):
            yield f".. autoclass:: {module}.{name}\n   :members:\n   :undoc-members:\n\n"
        elif inspect.isroutine(each):
            yield f".. autofunction:: {module}.{name}\n\n"
        else:
            yield f".. autodata:: {module}.{name}\n\n"


def _is_error(each: object) -> bool:
    return inspect.isclass(each) and issubclass(each, LogError)
