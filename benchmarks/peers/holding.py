"""Having the machine as long as a command says so: one that runs another, as `flock FILE` does."""

import asyncio
import shlex
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from benchmarks.peers.jars import PeerMissing


@asynccontextmanager
async def held(command: str) -> AsyncIterator[Callable[[], None]]:
    """Run `cat` under *command*; what it echoes shows that we hold what *command* waited for.

    Yields a check, which raises `PeerMissing` if that has ended. Empty, *command* holds nothing."""
    if not command:
        yield lambda: None
        return
    process = await asyncio.create_subprocess_exec(
        *shlex.split(command), "cat", stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def check() -> None:
        if process.returncode is not None:
            raise PeerMissing(f"`{command}` ended with {process.returncode} before the row did")

    try:
        process.stdin.write(b"\n")
        if not await process.stdout.readline():
            await process.wait()
            check()
        yield check
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.terminate()  # it may still wait
        raise
    finally:
        process.stdin.close()  # cat ends, and with it what it runs under
        await process.wait()
