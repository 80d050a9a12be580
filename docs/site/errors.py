"""The page of all errors: what each means, whether to try again, and the sentence it comes with.

The sentences are those that the classes make, with names in capitals for what they are made of.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from docs.site.markdown import code, table
from ledger.errors import LogError

_HEAD = """\
# Errors

Made of the error classes. Everything that dlog raises on purpose is a `dlog.LogError`; its
sentence says what to do, and two attributes let a program decide:

- *again*: `retryable`. The same may succeed later, as it is.
- *unknown*: `outcome_unknown`. What was asked for may have been done all the same; find out before
  doing it again.

What an application does about those that it meets when it appends is in [the
guide](guide.md#when-something-fails). Words in capitals stand for what an error says of its case;
each is an attribute of it too, in small letters. Where no sentence is shown, the class is only the
base of others, and can be caught in place of them.
"""
_GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Logs": ("dlog.errors",),
    "Leaders": ("leader",),
    "Ledgers, metadata store, connections": ("ledger",),
    "Spark": ("dlog.spark",),
    "Configuration, commands, this machine": ("dlog",),
    "Bookies": ("bookie",),
}
"""Headings, with the modules whose errors are below each unless they are below one before."""

_COLUMNS: Final = ("error", "again", "unknown", "its sentence", "what it means")
_FLOORS: Final = ("ledger", "bookie", "leader", "dlog")
_ROOT: Final = Path(__file__).parents[2]
_CLASS: Final = re.compile(r"^class (\w+)\(([^)]*)\):", re.MULTILINE)
_TREE: Final = re.compile(r"(?:\|-|`-) (\w+(?: / \w+)*)(?:[ \t]{2,}(.+?))?$", re.MULTILINE)


class _Number(float):
    """A number that is shown as its name."""

    name: str

    def __new__(cls, name: str) -> "_Number":
        made = super().__new__(cls, 2)
        made.name = name
        return made

    def __format__(self, _: str) -> str:
        return self.name

    def __sub__(self, _: float) -> "_Number":
        return _Number("COUNT")

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


class _Text(str):
    """A text that is shown without quotes."""

    __slots__ = ()

    def __getattr__(self, name: str) -> "_Text":
        if name.startswith("_"):
            raise AttributeError(name)
        return _Text(name.upper())  # of a thing, not of text

    def __repr__(self) -> str:
        return str(self)


def page() -> str:
    """Return the page."""
    left = all_errors()
    parts = [_HEAD]
    for title, modules in _GROUPS.items():
        chosen = [each for each in left if _is_in(each, modules)]
        left = [each for each in left if each not in chosen]
        parts.append(f"\n## {title}\n\n{table(_COLUMNS, map(_row, chosen))}")
    assert not left, f"errors below no heading: {left}"
    return "".join(parts)


@cache
def _all() -> tuple[type[LogError], ...]:
    for module in _modules_with_errors():
        importlib.import_module(module)
    found = sorted(_below(LogError), key=lambda each: (each.__module__, _line(each)))
    return tuple(dict.fromkeys(found))


def _modules_with_errors() -> list[str]:
    """Return the modules that define errors, by their text: not all can be imported everywhere."""
    bases: dict[str, set[str]] = {}
    homes: dict[str, str] = {}
    for path in (path for floor in _FLOORS for path in sorted((_ROOT / floor).rglob("*.py"))):
        for name, listed in _CLASS.findall(path.read_text(encoding="utf-8")):
            bases[name] = set(re.findall(r"\w+", listed))
            homes[name] = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    known = {LogError.__name__}
    while more := {name for name, listed in bases.items() if listed & known} - known:
        known |= more
    return sorted({homes[name] for name in known})


def all_errors() -> list[type[LogError]]:
    """Return every public error class of the product, in the order of the source."""
    return [each for each in _all() if each.__module__.split(".")[0] in _FLOORS]


def _below(kind: type[LogError]) -> Iterator[type[LogError]]:
    for each in kind.__subclasses__():
        if not each.__name__.startswith("_"):
            yield each
        yield from _below(each)


def _line(kind: type[Any]) -> int:
    return inspect.getsourcelines(kind)[1]


def _is_in(kind: type[Any], modules: tuple[str, ...]) -> bool:
    return any(f"{kind.__module__}.".startswith(f"{module}.") for module in modules)


def _row(kind: type[LogError]) -> tuple[str, ...]:
    again, unknown = ("yes" if said else "no" for said in (kind.retryable, kind.outcome_unknown))
    return code(kind.__name__), again, unknown, _plain(_sentence(kind)), _plain(_meaning(kind))


def _sentence(kind: type[LogError]) -> str:
    """Return what an error of *kind* says, or nothing if there is none of the class itself."""
    if kind.__init__ is LogError.__init__:
        return ""
    shown = {
        name: _sample(name, str(param.annotation))
        for name, param in inspect.signature(kind).parameters.items()
        if param.default is param.empty or str(param.annotation).startswith("str")
    }
    positional = [
        shown.pop(name)
        for name, param in inspect.signature(kind).parameters.items()
        if name in shown and param.kind is not param.KEYWORD_ONLY
    ]
    said = str(kind(*positional, **shown))
    return said if said.endswith(".") else f"{said}."


def _sample(name: str, annotation: str) -> Any:
    if annotation in ("int", "float", "<class 'int'>", "<class 'float'>"):
        return _Number(name.upper())
    if "Place" in annotation:
        return _Text(name.upper())
    if re.search(r"Iterable|Sequence", annotation):
        return (_Text(name.upper()),)
    return _Text(name.upper())


def _meaning(kind: type[LogError]) -> str:
    """Return the first of: the class's own docstring, what the tree of its module says of it."""
    if own := kind.__dict__.get("__doc__"):
        return inspect.cleandoc(own).partition("\n\n")[0]
    said = _tree(inspect.getmodule(kind)).get(kind.__name__, "")
    return said[:1].upper() + said[1:] + "." * bool(said)


def _tree(module: ModuleType | None) -> dict[str, str]:
    """Return what the tree in the docstring of *module* says of each error in it."""
    text = (module.__doc__ if module else None) or ""
    return {
        name: said for names, said in _TREE.findall(text) for name in names.split(" / ") if said
    }


def _plain(text: str) -> str:
    return re.sub(r"([<*_\[\]])", r"\\\1", text)
