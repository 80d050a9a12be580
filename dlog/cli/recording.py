"""Which commands change the cluster, and how what they are given is written down.

A command that is in neither list of the tests' is refused by them: so a new one cannot be
forgotten. Options that turn a look into a change, or a change into a look, decide here.
"""

from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand

from dlog.cli.connections import connected
from dlog.config import load

T = TypeVar("T")
Given = Mapping[str, object]
"""Arguments and options of a command, by the names of its parameters."""


def _always(_: Given) -> bool:
    return True


def _if(name: str) -> Callable[[Given], bool]:
    return lambda given: bool(given[name])


def _unless(name: str) -> Callable[[Given], bool]:
    return lambda given: not given[name]


def _sets(given: Given) -> bool:
    return given["reset"] is True or (given["rate"], given["ledgers"]) != (None, None)


CHANGING: Final[dict[str, Callable[[Given], bool]]] = {
    "log create": _always,
    "log rename": _always,
    "log seal": _always,
    "log delete": _always,
    "log truncate": _unless("dry_run"),
    "log settings set": _always,
    "log verify": _if("repair"),
    "log audit": _if("repair"),
    "key rewrap": _always,
    "consumer reset": _always,
    "consumer delete": _always,
    "ledger recover": _always,
    "access grant": _always,
    "access revoke": _always,
    "quota set": _always,
    "quota remove": _always,
    "cluster upgrade": _unless("dry_run"),
    "janitor run": _if("once"),
    "bookie gc": _always,
    "bookie compact": _always,
    "bookie readonly": _always,
    "bookie decommission": _always,
    "bookie recover": _unless("dry_run"),
    "bookie replace": _always,
    "bookie rebalance": _unless("dry_run"),
    "bookie format": _if("forget"),
    "autorecovery audit": _always,
    "autorecovery enable": _always,
    "autorecovery disable": _always,
    "autorecovery delay": _always,
    "autorecovery throttle": _sets,
}
"""By the words of the command line; whether it changes something depends on what it is given."""

NOT_WRITTEN: Final = frozenset({"uri", "as_json", "yes", "password"})
"""Parameters that say nothing of the change, or must not be seen."""

_asked: Final = ContextVar[tuple[str, Given]]("asked", default=("", {}))
"""The words of the command that runs, without the program's, and what it was given."""


class NotedCommand(TyperCommand):
    """A command of which `recorded` knows what it was given."""

    def invoke(self, ctx: Any) -> Any:
        words, at = [], ctx
        while at.parent is not None:
            words.append(at.info_name or "")
            at = at.parent
        before = _asked.set((" ".join(reversed(words)), ctx.params))
        try:
            return super().invoke(ctx)
        finally:
            _asked.reset(before)


def note_commands(app: typer.Typer) -> None:
    """Let all commands of *app* be known to `recorded`."""
    for command in app.registered_commands:
        command.cls = NotedCommand
    for group in app.registered_groups:
        assert group.typer_instance is not None
        note_commands(group.typer_instance)


def arguments_of(given: Given) -> dict[str, object]:
    """Return what is written down of what a command was given."""
    return {
        name: value
        for name, value in given.items()
        if name not in NOT_WRITTEN and value is not None and value is not False
    }


async def recorded(uri: str | None, command: Coroutine[object, object, T]) -> T:
    """Await *command*, written down if it is one that changes something."""
    words, given = _asked.get()
    changes = CHANGING.get(words)
    if changes is None or not changes(given):
        return await command
    try:
        mode = load().audit
        if mode == "off":
            return await command
        return await _recorded(uri, command, words, given)
    finally:
        command.close()


async def _recorded(
    uri: str | None, command: Coroutine[object, object, T], words: str, given: Given
) -> T:
    from dlog.changes import Mode, ourselves
    from dlog.changes import recorded as recorded_change
    from dlog.cli.runner import told

    async with (
        connected(uri) as client,
        recorded_change(
            client,
            words,
            arguments_of(given),  # type: ignore[arg-type] # anything is made text there
            who=ourselves(),
            mode=Mode(load().audit),
            warn=told,
        ),
    ):
        return await command
