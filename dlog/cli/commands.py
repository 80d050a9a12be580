"""The declaration of a command beside its function: whether it changes things, its place in the
documents, examples; and the record of the change that it makes.

`CommandGroup.define` asks for all of that, so none of it can be forgotten, and tests check what it
says. Options that turn a look into a change, or a change into a look, decide in the `Effect`.
"""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer
from typer.core import TyperCommand

from dlog.cli.connections import connected
from dlog.cli.output import warn
from dlog.config import load

if TYPE_CHECKING:
    from dlog.changes.change import Argument

INTERRUPTED: Final = 130
"""Exit code of a command that was interrupted."""
NOT_WRITTEN: Final = frozenset({"uri", "as_json", "yes", "password", "password_file"})
"""Parameters that say nothing of the change, or must not be seen."""

Given = Mapping[str, object]
"""Arguments and options of a command, by the names of its parameters."""
Function = TypeVar("Function", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Effect:
    """Whether a command changes the cluster, which the log of changes then has."""

    changes: Callable[[Given], bool] | None = None
    """By what it is given. None: never."""
    reason: str = ""
    """Why a command that changes something is not recorded."""


READS: Final = Effect()
CHANGES: Final = Effect(lambda _: True)
SERVES: Final = Effect(reason="it serves until it is stopped")
APPLIES: Final = Effect(reason="applications do the same; there may be millions of it")


def changes_if(option: str) -> Effect:
    return Effect(lambda given: bool(given[option]))


def changes_unless(option: str) -> Effect:
    return Effect(lambda given: not given[option])


def not_recorded(reason: str) -> Effect:
    return Effect(reason=reason)


class DeclaredCommand(TyperCommand):
    """A command whose change has the outcome that its exit code says."""

    effect: Effect
    documented: str
    """Page and heading of the documents, as ``cli#logs``."""

    def invoke(self, ctx: Any) -> Any:
        words, at = [], ctx
        while at.parent is not None:
            words.append(at.info_name or "")
            at = at.parent
        invocation = Invocation(" ".join(reversed(words)), self.effect, ctx.params)
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


class CommandGroup(typer.Typer):
    """Commands that one section of the documents has, unless they name another."""

    def __init__(self, documented: str, about: str | None = None) -> None:
        """With *about*, the group's help; without it the group is a part of another one."""
        super().__init__(help=about, no_args_is_help=about is not None)
        self._documented = documented

    def define(
        self,
        effect: Effect,
        *examples: str,
        name: str | None = None,
        documented: str | None = None,
        exit_codes: str = "",
    ) -> Callable[[Function], Function]:
        """Make a function a command of the group, with *examples* at the end of its help.

        Its name is the function's unless given; *exit_codes* are said before the examples."""
        end = examples_of(*examples)
        return self.command(
            name,
            cls=command_class(effect, documented or self._documented),
            epilog=f"{exit_codes}\n\n{end}" if exit_codes else end,
        )


def examples_of(*lines: str) -> str:
    """Return the end of a command's help."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in lines)])


def include(app: typer.Typer, *parts: CommandGroup) -> None:
    """Let *app* have the commands of *parts*, too."""
    for part in parts:
        app.registered_commands += part.registered_commands


def command_class(effect: Effect, documented: str) -> type[DeclaredCommand]:
    """Return the class of a command with this effect."""

    class Stated(DeclaredCommand):
        pass

    Stated.effect, Stated.documented = effect, documented
    return Stated


@dataclass(slots=True)
class Invocation:
    """A command that runs: the words of its command line without the program's, what it was given,
    and the change that it makes."""

    words: str
    effect: Effect
    given: Given = field(default_factory=dict)
    recording: "Recording | None" = None


_invocation: Final = ContextVar[Invocation]("invocation")


def _failure(error: BaseException | None) -> BaseException | None:
    """Return what ended a command, None if it was done: an exit code says so, too."""
    if not isinstance(error, typer.Exit):
        return error
    if error.exit_code == INTERRUPTED:
        return KeyboardInterrupt()
    if error.exit_code and not getattr(error, "__notes__", ()):
        error.add_note(f"exit code {error.exit_code}")
    return error if error.exit_code else None


def arguments_of(given: Given) -> "dict[str, Argument]":
    """Return what is recorded of what a command was given."""
    return {
        name: _argument(value)
        for name, value in given.items()
        if name not in NOT_WRITTEN and value is not None and value is not False
    }


def _argument(value: object) -> "Argument":
    match value:
        case bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [str(item) for item in value]
        case _:
            return str(value)


def recording(uri: str | None) -> "Recording | None":
    """Return what records the change of the command that runs; None: it makes none, or changes
    are not recorded. Raises `InvalidConfig`."""
    invocation = _invocation.get(None)
    if invocation is None:
        return None
    changes = invocation.effect.changes
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
        """Record that the change begins, once. Raises `LogError`."""
        from dlog.changes import Mode, ourselves, recorded

        if self._begun:
            return
        self._begun = True
        client = await self._stack.enter_async_context(connected(self._uri))
        await self._stack.enter_async_context(
            recorded(
                client,
                self._words,
                self._arguments,
                who=ourselves(),
                mode=Mode(load().audit),
                warn=warn,
            )
        )

    def end(self, error: BaseException | None) -> None:
        """Record how the change ended: with *error*, or None if it was done."""
        with self.runner:
            self.runner.run(self._end(error))

    async def _end(self, error: BaseException | None) -> None:
        try:
            await self._stack.__aexit__(type(error) if error else None, error, None)
        except BaseException as raised:
            if raised is not error:
                raise
