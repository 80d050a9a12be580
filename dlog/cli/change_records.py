"""Which commands change the cluster, and how what they are given is written down.

A command that is in neither list of the tests' is refused by them: so a new one cannot be
forgotten. Options that turn a look into a change, or a change into a look, decide here.
"""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import typer
from typer.core import TyperCommand

from dlog.cli.connections import connected
from dlog.config import load

INTERRUPTED: Final = 130
"""Exit code of a command that was interrupted."""

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
    "ledger close-at": _always,
    "metadata reconcile": _always,
    "access grant": _always,
    "access revoke": _always,
    "access protect": _always,
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


@dataclass(slots=True)
class Invocation:
    """A command that runs: the words of its command line without the program's, what it was given,
    and the change that it makes."""

    words: str = ""
    given: Given = field(default_factory=dict)
    recording: "Recording | None" = None


_invocation: Final = ContextVar[Invocation]("invocation")


class RecordedCommand(TyperCommand):
    """A command whose change has the outcome that its exit code says."""

    def invoke(self, ctx: Any) -> Any:
        words, at = [], ctx
        while at.parent is not None:
            words.append(at.info_name or "")
            at = at.parent
        invocation = Invocation(" ".join(reversed(words)), ctx.params)
        before = _invocation.set(invocation)
        error: BaseException | None = None
        try:
            return super().invoke(ctx)
        except BaseException as raised:
            error = raised
            raise
        finally:
            _invocation.reset(before)
            if invocation.recording is not None:
                invocation.recording.end(_failure(error))


def _failure(error: BaseException | None) -> BaseException | None:
    """Return what ended a command, None if it was done: an exit code says so, too."""
    if not isinstance(error, typer.Exit):
        return error
    if error.exit_code == INTERRUPTED:
        return KeyboardInterrupt()
    if error.exit_code and not getattr(error, "__notes__", ()):
        error.add_note(f"exit code {error.exit_code}")
    return error if error.exit_code else None


def note_commands(app: typer.Typer) -> None:
    """Let the changes of all commands of *app* be written down."""
    for command in app.registered_commands:
        command.cls = RecordedCommand
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


def recording(uri: str | None) -> "Recording | None":
    """Return how the change of the command that runs is written down; None: it makes none, or
    changes are not written down. Raises `InvalidConfig`."""
    invocation = _invocation.get(None)
    if invocation is None:
        return None
    changes = CHANGING.get(invocation.words)
    if changes is None or not changes(invocation.given) or load().audit == "off":
        return None
    if invocation.recording is None:
        invocation.recording = Recording(uri, invocation.words, invocation.given)
    return invocation.recording


class Recording:
    """One change in the log of changes. Its event loop runs what the command awaits, and stays
    until the exit code is known."""

    def __init__(self, uri: str | None, words: str, given: Given) -> None:
        import asyncio

        self.runner = asyncio.Runner()
        self._uri = uri
        self._words = words
        self._arguments = arguments_of(given)
        self._stack = AsyncExitStack()
        self._begun = False

    async def begin(self) -> None:
        """Write down that the change begins, once. Raises `LogError`."""
        from dlog.changes import Mode, ourselves, recorded
        from dlog.cli.runner import told

        if self._begun:
            return
        self._begun = True
        client = await self._stack.enter_async_context(connected(self._uri))
        await self._stack.enter_async_context(
            recorded(
                client,
                self._words,
                self._arguments,  # type: ignore[arg-type] # anything is made text there
                who=ourselves(),
                mode=Mode(load().audit),
                warn=told,
            )
        )

    def end(self, error: BaseException | None) -> None:
        """Write down how the change ended: with *error*, or None if it was done."""
        with self.runner:
            self.runner.run(self._end(error))

    async def _end(self, error: BaseException | None) -> None:
        try:
            await self._stack.__aexit__(type(error) if error else None, error, None)
        except BaseException as raised:
            if raised is not error:
                raise
