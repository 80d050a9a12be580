"""Names of logs, bookies and codecs, as a person types them: completed, shortened, corrected; and
``dlog completion``, the scripts that let shells complete them."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import READS, CommandGroup
from ledger.errors import CallerError, LogError
from ledger.values import nearest

if TYPE_CHECKING:
    from ledger.metastore.port import MetadataStore

LOOK_S: Final = 2.0
"""A person waits for it: better no completion than a late one."""
COMPLETED_MAX: Final = 100
"""Bookies that are offered: each costs a call."""


def complete_log(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of logs that begin with *incomplete*; none if they are not known."""
    from dlog.aio.store import listed_names

    return _looked_up(context, lambda store: listed_names(store, incomplete))


def complete_bookie(context: typer.Context, incomplete: str) -> list[str]:
    """As `complete_log`, of bookies; retired ones are left out."""

    async def look(store: "MetadataStore") -> list[str]:
        from ledger.registry import Retirement, retirement_of

        names = sorted(name for name in await _known_bookies(store) if name.startswith(incomplete))
        return [
            name
            for name in names[:COMPLETED_MAX]
            if await retirement_of(store, name) is Retirement.NONE
        ]

    return _looked_up(context, look)


def complete_setting(incomplete: str) -> list[str]:
    """Return the names of settings of logs that begin with *incomplete*."""
    from dlog.settings import SETTING_NAMES

    return [name for name in SETTING_NAMES if name.startswith(incomplete)]


def complete_assignment(incomplete: str) -> list[str]:
    """As `complete_setting`, each with the sign that its value follows."""
    return [f"{name}=" for name in complete_setting(incomplete)]


def complete_position(incomplete: str) -> list[str]:
    """Return the words for positions in a log that begin with *incomplete*."""
    return [word for word in ("start", "end") if word.startswith(incomplete)]


def _looked_up(
    context: typer.Context, look: "Callable[[MetadataStore], Awaitable[list[str]]]"
) -> list[str]:
    import asyncio

    async def looked_up() -> list[str]:
        from dlog.cli.connections import check_there, opened_store

        uri = context.params.get("uri")
        check_there(uri)
        async with asyncio.timeout(LOOK_S), opened_store(uri) as store:
            return await look(store)

    try:
        return asyncio.run(looked_up())
    except (LogError, OSError):  # OSError: the time-out, too
        return []


async def bookie_named(store: "MetadataStore", given: str) -> str:
    """Return the name of the bookie that a person means by *given*: the name itself, or all of it
    but the part behind a hyphen, if that leaves one bookie. A name that nobody has is returned as
    it is; retired ones have to be given whole."""
    from ledger.registry import Retirement, retirement_of

    known = await _known_bookies(store)
    if given in known:
        return given
    meant = [
        name
        for name in sorted(known)
        if name.startswith(f"{given}-") and await retirement_of(store, name) is Retirement.NONE
    ]
    if len(meant) > 1:
        raise AmbiguousBookie(given, meant)
    return meant[0] if meant else given


async def near_log(uri: str | None, given: str) -> str:
    """Return the end of a sentence that says there is no log *given*: which one may be meant. It
    is empty if there is none, or if the logs are not listed within `LOOK_S`."""
    import asyncio

    from dlog.aio.store import log_names
    from dlog.cli.connections import opened_store

    with suppress(LogError, OSError):  # OSError: the time-out, too
        async with asyncio.timeout(LOOK_S), opened_store(uri) as store:
            names = await log_names(store)
        return "" if given in names else did_you_mean(given, names)
    return ""


async def near_bookies(store: "MetadataStore", given: Iterable[str]) -> str:
    """As `near_log`, for those of *given* that are the names of no bookie."""
    known = await _known_bookies(store)
    return "".join(did_you_mean(name, known) for name in given if name not in known)


async def near_election(store: "MetadataStore", given: str) -> str:
    """As `near_log`, of logs that somebody stood for election of. A log that exists is meant."""
    from dlog.aio.store import log_names
    from leader import contested_logs

    contested = await contested_logs(store)
    if given in contested or given in await log_names(store):
        return ""
    return did_you_mean(given, contested)


async def near_consumer(uri: str | None, log: str, given: str) -> str:
    """As `near_log`, of the consumers of *log*."""
    import asyncio

    from dlog.aio.admin import list_consumers

    with suppress(LogError, OSError):  # OSError: the time-out, too
        async with asyncio.timeout(LOOK_S):
            names = [consumer.name for consumer in await list_consumers(log, uri=uri)]
        return did_you_mean(given, names)
    return ""


def did_you_mean(given: str, names: Iterable[str]) -> str:
    near = nearest(given, names)
    return "" if near is None else f"; did you mean {near!r}?"


async def _known_bookies(store: "MetadataStore") -> set[str]:
    from ledger.metastore.port import children_of
    from ledger.registry import AVAILABLE, COOKIES, READ_ONLY

    known: set[str] = set()
    for root in (COOKIES, AVAILABLE, READ_ONLY):
        known.update(await children_of(store, root))
    return known


class AmbiguousBookie(CallerError):
    def __init__(self, given: str, names: Sequence[str]) -> None:
        super().__init__(
            f"several bookies have names that begin with {given!r}: {', '.join(names[:8])}; give "
            "the whole name"
        )
        self.given, self.names = given, names


def complete_codec(incomplete: str) -> list[str]:
    """Return the names of codecs that begin with *incomplete*; levels of zstd are left out."""
    from dlog.recordbatch import Codec

    names = [codec.name.lower() for codec in Codec]
    return [name for name in names if name.startswith(incomplete)]


app = CommandGroup("cli#completion")


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.define(
    READS,
    'eval "$(dlog completion bash)"    # in ~/.bashrc',
    'eval "$(dlog completion zsh)"     # in ~/.zshrc',
    "dlog completion fish > ~/.config/fish/completions/dlog.fish",
)
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that lets a shell complete commands, options and names of logs."""
    # What `dlog --show-completion` prints, for any shell and not only the one that runs.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(
        prog_name="dlog", complete_var="_DLOG_COMPLETE", shell=shell.value
    )
    typer.echo(script)
