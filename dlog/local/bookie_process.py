"""One bookie of the local cluster, as a child process with a directory and a log file.

Children end with their parent, however that ends: they are started with
``--die-with-parent``. The kernel means the *thread* that started them, so `start` must be
called on a thread that lives as long as the bookie shall.
"""

import asyncio
import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import bookie
from bookie.command import IDENTITY_LOST
from bookie.disk.port import RealDisk
from bookie.identity.cookie import PATH as COOKIE
from bookie.identity.cookie import read_cookie
from ledger.errors import StorageError
from ledger.metastore.uri import URI_VARIABLE
from ledger.options import PORT_VARIABLE, variables_of
from ledger.security.settings import TlsSettings

_TAIL_BYTES_MAX: Final = 16_384
_TAIL_LINES: Final = 12
DEATHS_MAX: Final = 5
DEATHS_WITHIN_S: Final = 60.0
_AGAIN_S_MIN: Final = 0.5
_AGAIN_S_MAX: Final = 8.0
_PACKAGES: Final = Path(bookie.__file__).parents[1]


def name_in(directory: Path) -> str:
    """Return the name of the bookie whose data are in *directory*; empty if there is none that can
    be read: then its start says why."""
    if not (directory / COOKIE).exists():
        return ""
    try:
        cookie = read_cookie(RealDisk(directory))
    except (StorageError, OSError):
        return ""
    return "" if cookie is None else cookie.bookie


class BookieProcess:
    """Bookie *bookie* in *directory*, called *name* by people; may be started again after each
    end."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        bookie: str,
        uri: str,
        log_path: Path,
        options: Sequence[str] = (),
        tls: TlsSettings | None = None,
    ) -> None:
        """*options*: further ones of its command line; *tls*: how its connections are secured, by
        default as those of this process."""
        self.name, self.bookie = name, bookie
        self.directory = directory
        self.log_path = log_path
        self._uri = uri
        self._options = options
        self.tls = tls
        """From the next start on."""
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """What the last process ended with (negative: the signal); None while it runs."""
        return self._process.poll() if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        self.log_path.touch(mode=0o600)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - a command of our own making
                self._command(),
                env=_environment(self._uri, self.tls),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is the parent's to handle
            )

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        """Ask it to end; see `wait`."""
        if self._process is not None and self.running:
            self._process.terminate()

    async def wait(self, timeout_s: float) -> None:
        """Return once it has ended; it is killed after *timeout_s*."""
        if self._process is None:
            return
        try:
            await asyncio.to_thread(self._process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_tail(self) -> str:
        """Return the last lines that it wrote since its last start."""
        with self.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _TAIL_BYTES_MAX))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def _command(self) -> list[str]:
        # -P: what lies in the working directory must not be taken for our packages.
        python = [sys.executable, "-P", "-m", "bookie", "--die-with-parent"]
        where = ["--dir", str(self.directory)]
        own = ["--id", self.bookie, "--host", "127.0.0.1", "--port", "0"]
        return [*python, *where, *own, *self._options]


class BookieKeeper:
    """Starts *process* again after it died, with pauses that double up.

    It stays down if it ended in order, as somebody stopped it; if its name is not its own any
    more; and after `DEATHS_MAX` deaths within `DEATHS_WITHIN_S`."""

    def __init__(self, process: BookieProcess) -> None:
        self._process = process
        self._deaths: deque[float] = deque(maxlen=DEATHS_MAX)
        self._start_at: float | None = None
        self._down: int | None = None
        """Which process was the last one, if it stays down."""

    def look(self, now: float) -> str:
        """Do what is due *now*, in seconds of a steady clock; return what happened, in a sentence,
        or nothing. Call it on the thread that the bookie shall end with."""
        process = self._process
        if process.running:
            self._down = self._start_at = None
            return ""
        if self._down == process.pid:
            return ""
        ended = f"{process.name} ended with exit code {process.exit_code}"
        if self._start_at is None:
            self._deaths.append(now)
            if reason := self._reason_to_stay_down(now):
                self._down = process.pid
                last = process.log_tail()
                said = f"{ended} and is not started again: {reason}; see {process.log_path}"
                return f"{said}\n{last}" if last else said
            self._start_at = now + min(_AGAIN_S_MIN * 2 ** (self._recent(now) - 1), _AGAIN_S_MAX)
        if now < self._start_at:
            return ""
        self._start_at = None  # if it dies at once, that is another death
        try:
            process.start()
        except OSError as error:  # too many processes, or its log cannot be opened
            return f"{ended} and could not be started again: {error}"
        return f"{ended} and was started again, as process {process.pid}; see {process.log_path}"

    def _recent(self, now: float) -> int:
        return sum(now - death < DEATHS_WITHIN_S for death in self._deaths)

    def _reason_to_stay_down(self, now: float) -> str:
        if self._process.exit_code == 0:
            return "it was stopped"
        if self._process.exit_code == IDENTITY_LOST:
            return "its name is retired, or another one has it"
        if self._recent(now) == DEATHS_MAX:
            return f"it died {DEATHS_MAX} times within {DEATHS_WITHIN_S:g} s"
        return ""


def _environment(uri: str, tls: TlsSettings | None) -> dict[str, str]:
    # The command line of a process is seen by all, and a URI may have a password.
    paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop(PORT_VARIABLE, None)  # one port is not for all of them
    environment[URI_VARIABLE] = uri
    return environment if tls is None else environment | variables_of(tls)
