"""Runs one command: its event loop, its errors as one sentence, its exit code.

Results go to stdout, everything else to stderr. Exit codes:

    0    done
    1    refused or failed; stderr says why and what to do
    2    the command line is wrong
    130  interrupted
"""

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from dlog.cli.commands import INTERRUPTED, recording
from dlog.cli.connections import check_there, connected
from dlog.cli.output import warn
from dlog.config import load
from ledger import log_events
from ledger.errors import LogError

if TYPE_CHECKING:
    import asyncio

    from dlog.aio.maintain.pass_runner import PassRunner
    from ledger.client import LedgerClient

FAILED: Final = 1

P = TypeVar("P")
T = TypeVar("T")


def run(command: Coroutine[object, object, T], runner: "asyncio.Runner | None" = None) -> T:
    """Return what *command* returns; leave with one sentence and an exit code if it fails.

    *runner* has the event loop; None: one of its own."""
    import asyncio

    log_events.configure(logging.DEBUG if debugging() else logging.ERROR)
    try:
        return asyncio.run(command) if runner is None else runner.run(command)
    except LogError as error:
        raise failed(str(error)) from error
    except BrokenPipeError:  # 'head' has what it wants: that is no failure
        _forget_stdout()
        raise typer.Exit from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, typer.BadParameter):
        raise
    except OSError as error:
        raise failed(f"{error.strerror or error}: {error.filename}") from error
    except Exception as error:
        # A bug of ours: still one sentence, and how to see the rest of it.
        raise failed(
            f"internal error: {error!r}; set DLOG_DEBUG=1 for the traceback and report it"
        ) from error


def run_at(uri: str | None, command: Coroutine[object, object, T]) -> T:
    """As `run_recorded`, in the namespace *uri*, which must be there.

    Opening an embedded store makes its directory; at a shell a mistyped path would then be
    an empty namespace."""
    try:
        check_there(uri)
    except LogError as error:
        command.close()
        raise failed(str(error)) from error
    return run_recorded(uri, command)


def run_recorded(uri: str | None, command: Coroutine[object, object, T]) -> T:
    """As `run`; a change is recorded in the log of changes."""
    try:
        change = recording(uri)
        if change is None:
            return run(_hinted(uri, command))
        run(change.begin(), change.runner)
        return run(_hinted(uri, command), change.runner)
    except LogError as error:
        raise failed(str(error)) from error
    finally:
        command.close()


def run_check(uri: str | None, command: Coroutine[object, object, bool]) -> None:
    """As `run_at`; leave with 1 if *command* returns that not all is as it should be."""
    if not run_at(uri, command):
        raise typer.Exit(FAILED)


def confirm(question: str, *, yes: bool) -> None:
    """Ask *question*, unless *yes* has answered it; leave if the answer is no."""
    if not yes:
        typer.confirm(question, abort=True, err=True)


async def _hinted(uri: str | None, command: Coroutine[object, object, T]) -> T:
    """Do *command*; of a log or a consumer that does not exist, also say which one may be meant,
    and of a local cluster that does not run, how it is started."""
    try:
        return await command
    except LogError as error:
        from dlog.cli.completion import near_consumer, near_log
        from dlog.config import default_uri, resolve_uri
        from dlog.errors import NoSuchConsumer, NoSuchLog
        from ledger.errors import NotEnoughBookies

        if isinstance(error, NoSuchLog):
            hint = await near_log(uri, error.log)
        elif isinstance(error, NoSuchConsumer):
            hint = await near_consumer(uri, error.log, error.consumer)
        elif (
            isinstance(error, NotEnoughBookies)
            and not error.available
            and resolve_uri(uri) == default_uri()
        ):
            hint = "; 'dlog up' starts the bookies of the local cluster"
        else:
            raise
        raise failed(f"{error}{hint}") from error


async def until_signal(*works: Coroutine[object, object, None]) -> None:
    """Do *works* until one of them ends, whose error is raised, or SIGINT, SIGTERM or SIGHUP says
    to stop: that is an end in order. The others are cancelled, and have ended then."""
    import asyncio

    from ledger.process import keep_loaded
    from ledger.supervisor import READY, STOPPING, kept_alive, tell

    stop = asyncio.Event()
    with ExitStack() as handlers:
        loop = asyncio.get_running_loop()
        with suppress(ValueError):  # not in the main thread: then others handle signals
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, stop.set)
                handlers.callback(loop.remove_signal_handler, number)
        working = {asyncio.ensure_future(work) for work in works}
        stopping = asyncio.ensure_future(_set(stop))
        tasks = {*working, stopping}
        keep_loaded()
        tell(READY)
        try:
            async with kept_alive():
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tell(STOPPING)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # raises why it ended by itself


async def _set(event: "asyncio.Event") -> None:
    await event.wait()


def failed(sentence: str) -> typer.Exit:
    """Say *sentence* on stderr; return what to raise."""
    if debugging() and sys.exc_info()[0] is not None:
        traceback.print_exc()
    warn(sentence)
    error = typer.Exit(FAILED)
    error.add_note(sentence)  # for the log of changes
    return error


def debugging() -> bool:
    return os.environ.get("DLOG_DEBUG", "") not in ("", "0")


def _forget_stdout() -> None:
    """The reader of our output went away; nothing is left to say, also not at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def run_passes(
    make: "Callable[[LedgerClient], PassRunner[P]]",
    show: Callable[[P], None],
    is_well: Callable[[P], bool],
    *,
    once: bool,
    uri: str | None,
    metrics: tuple[str, int | None],
) -> bool:
    """Let what *make* returns make passes until a signal comes, and *show* each; *once*: one pass,
    and return whether it *is_well*. *metrics*: host and port where they are served."""
    from dlog.metrics import expose
    from ledger.metering.declaration import Exposed
    from ledger.metering.http_server import served
    from ledger.security.certificates import Security

    if once:
        async with connected(uri) as client:
            done = await make(client).run_once()
        show(done)
        return is_well(done)
    exposed = Exposed()
    security = await Security.settled(load().secured)
    with served(exposed, *metrics, warn, security=security):
        async with connected(uri) as client:
            runner = make(client)
            expose(exposed)
            exposed.readiness = runner.readiness
            await until_signal(_show_passes(runner, show), runner.run())
    return True


async def _show_passes(runner: "PassRunner[P]", show: Callable[[P], None]) -> None:
    while True:
        show(await runner.next_pass())
