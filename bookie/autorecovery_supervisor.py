"""Keeps a child process that works beside this one, as one of repair beside a bookie: started again
whenever it ends, with pauses.

A process of its own, because copying would hold the interpreter's lock that acknowledgements need.
Nothing of its parent depends on it.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import bookie
from ledger.delays import Backoff
from ledger.log_events import get_logger
from ledger.metastore.uri import URI_VARIABLE
from ledger.options import PORT_VARIABLE, variables_of
from ledger.security.settings import OFF, TlsSettings
from ledger.supervisor import SOCKET

_AGAIN_S_MIN: Final = 1.0
_AGAIN_S_MAX: Final = 60.0
_STEADY_S: Final = 60.0
"""A child that has run for so long has started well."""
_STOP_S_MAX: Final = 5.0

_log = get_logger(__name__)


async def keep_autorecovery(
    uri: str,
    *,
    log_path: Path | None = None,
    metrics: tuple[str, int] | None = None,
    tls: TlsSettings = OFF,
) -> None:
    """Run it until cancelled; then it is stopped, too, before this returns.

    It writes its log to *log_path*, by default where this process writes its own. *metrics* is
    where it serves its metrics, host and port; *tls* how its connections are secured."""
    arguments = ["bookie.autorecovery", "--parent", str(os.getpid())]
    if metrics is not None:
        host, port = metrics
        arguments += ["--metrics-host", host, "--metrics-port", str(port)]
    await keep_child("autorecovery", arguments, uri, log_path=log_path, tls=tls)


async def keep_child(
    name: str,
    module: Sequence[str],
    uri: str,
    *,
    log_path: Path | None = None,
    tls: TlsSettings = OFF,
    prefix: Sequence[str] = (),
) -> None:
    """As `keep_autorecovery`, for any *module* with its arguments; *name* is for the log. *prefix*:
    a command that runs it, and ends it with this process."""
    # -P: what lies in the working directory must not be taken for our packages.
    command = [*prefix, sys.executable, "-P", "-m", *module]
    loop = asyncio.get_running_loop()
    backoff = Backoff(_AGAIN_S_MIN, _AGAIN_S_MAX)
    while True:
        begun = loop.time()
        status: int | str
        try:
            status = await _run(command, _environment(uri, tls), log_path)
        except OSError as error:  # too many processes, or its log cannot be opened
            status = str(error)
        if loop.time() - begun > _STEADY_S:
            backoff.reset()
        pause_s = backoff.next()
        _log.warning(f"{name}_ended", status=status, again_s=pause_s)
        await asyncio.sleep(pause_s)


async def _run(command: Sequence[str], environment: dict[str, str], log_path: Path | None) -> int:
    with ExitStack() as opened:
        log = None
        if log_path is not None:
            log_path.touch(mode=0o600)  # noqa: ASYNC240 - no file is quicker
            log = opened.enter_context(log_path.open("ab"))
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,  # who reads this process's must see its end
            stderr=log,
            env=environment,
            start_new_session=True,  # a Ctrl-C is the parent's to handle
        )
    try:
        return await child.wait()
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.terminate()
            try:
                async with asyncio.timeout(_STOP_S_MAX):
                    await child.wait()
            except TimeoutError:
                child.kill()
                await child.wait()


def _environment(uri: str, tls: TlsSettings) -> dict[str, str]:
    """Return that of this process, in which the child finds the packages that run here, and the
    namespace: everybody sees the command line of a process, and a URI may have a password."""
    packages = str(Path(bookie.__file__).parents[1])
    paths = [packages, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop(PORT_VARIABLE, None)  # that port is the parent's
    environment.pop(SOCKET, None)  # and so is its supervisor
    return environment | variables_of(tls) | {URI_VARIABLE: uri}
