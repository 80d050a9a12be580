"""A worker's end of the socket: blocking calls, which start the keeper if there is none.

Every call may be made again: a claim that was answered is answered once more, and a batch that is
in the log is not put there twice. So whatever goes wrong on the way, a keeper that is killed, an
answer that never comes, is answered by calling again, until the patience is at an end.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from dlog.aio.write.sink import Assignment, Committed, Staged
from dlog.receipts import Receipt
from dlog.settings import LogSettings, settings_facts
from dlog.spark.errors import may_pass
from dlog.spark.namespaces import Namespace, environment_of
from dlog.spark.sink.keeper import frames
from dlog.spark.sink.keeper.place import KeeperPlace, Program
from ledger.delays import Backoff
from ledger.errors import CallerError, RemoteError

PATIENCE_S: Final = 180.0
"""How long trouble that may pass is borne in one call, beside what the keeper itself bears."""
SILENT_S: Final = 30.0
"""A keeper that works on a request says so every two seconds. After so long it is ended."""
CONNECT_S: Final = 5.0
BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 0.5

_PEER: Final = struct.Struct("3i")


class KeeperUnreachable(RemoteError):
    retryable = True
    outcome_unknown = True

    def __init__(self, place: KeeperPlace, waited_s: float, reason: str) -> None:
        super().__init__(
            f"the process that holds the logs of this Spark application did not answer for "
            f"{waited_s:.0f} s: {reason}; its log is {place.errors}"
        )
        self.waited_s, self.reason = waited_s, reason


class BatchTooLargeToTravel(CallerError):
    def __init__(self, log: str, size_bytes: int) -> None:
        super().__init__(
            f"log {log!r}: {size_bytes} bytes of one batch travel to the driver, at most "
            f"{frames.BODY_BYTES_MAX} can; write fewer partitions, or lower inlineBytesMax"
        )
        self.log, self.size_bytes = log, size_bytes


class KeeperClient:
    """One caller's connection to the keeper at *place*; *start* starts one. Used by one thread."""

    def __init__(
        self,
        place: KeeperPlace,
        start: Callable[[], None],
        *,
        patience_s: float = PATIENCE_S,
        silent_s: float = SILENT_S,
    ) -> None:
        self._place, self._start = place, start
        self._patience_s, self._silent_s = patience_s, silent_s
        self._socket: socket.socket | None = None

    def claim(
        self,
        logs: Sequence[str],
        *,
        run: str | None,
        create: bool,
        settings: LogSettings | None,
        all_held: bool = False,
    ) -> dict[str, Assignment]:
        """Return what tasks need to know of *logs*, and of all that are held if asked.

        See `Holding.claim`."""
        header = {
            "op": "claim",
            "logs": list(logs),
            "run": run,
            "create": create,
            "settings": settings and settings_facts(settings),
            "all": all_held,
        }
        assignments = map(frames.assignment_of, self._call(header))
        return {assignment.log: assignment for assignment in assignments}

    def commit(
        self,
        log: str,
        receipt: Receipt,
        parts: Sequence[bytes | Staged],
        *,
        run: str,
        entry_bytes_max: int,
        create: bool,
        settings: LogSettings | None,
        final: bool,
    ) -> Committed:
        """Make *parts* the unit *receipt* of *log*. See `Holding.commit`."""
        inline = [part for part in parts if not isinstance(part, Staged)]
        if (size := sum(map(len, inline))) > frames.BODY_BYTES_MAX:
            raise BatchTooLargeToTravel(log, size)
        header = {
            "op": "commit",
            "log": log,
            "run": run,
            "origin": receipt.origin.hex(),
            "number": receipt.number,
            "parts": [
                frames.staged_facts(part) if isinstance(part, Staged) else len(part)
                for part in parts
            ],
            "entry_bytes_max": entry_bytes_max,
            "create": create,
            "settings": settings and settings_facts(settings),
            "final": final,
        }
        return Committed(*self._call(header, inline))

    def finish(self, logs: Sequence[str], *, run: str) -> None:
        """*run* writes nothing more to *logs*."""
        self._call({"op": "finish", "logs": list(logs), "run": run})

    def close(self) -> None:
        """Let the connection go; the keeper lives on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _call(self, header: frames.Header, body: Sequence[bytes] = ()) -> Any:
        began = time.monotonic()
        backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        while True:
            try:
                answer = self._exchange(header, body)
            except (OSError, EOFError, ValueError) as error:
                self.close()
                waited_s = time.monotonic() - began
                if waited_s >= self._patience_s:
                    raise KeeperUnreachable(self._place, waited_s, str(error)) from error
            else:
                if "error" not in answer:
                    return answer["result"]
                refusal = frames.error_of(answer["error"])
                if not may_pass(refusal) or time.monotonic() - began >= self._patience_s:
                    raise refusal
            time.sleep(backoff.next())

    def _exchange(self, header: frames.Header, body: Sequence[bytes]) -> dict[str, Any]:
        if self._socket is None:
            self._socket = self._connected()
        try:
            for piece in frames.encode(header, body):
                self._socket.sendall(piece)
            while True:
                prefix = self._receive(frames.SIZES.size)
                answer = frames.decode(self._receive(frames.sizes(prefix)[0]))
                if "working" not in answer:
                    return answer
        except TimeoutError:
            # It has the lock as long as it lives, so nobody else can serve before it is gone.
            end_peer(self._socket)
            raise

    def _connected(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(CONNECT_S)
        try:
            made.connect(os.fspath(self._place.socket))
        except (FileNotFoundError, ConnectionRefusedError):
            made.close()
            self._start()
            raise
        except BaseException:
            made.close()
            raise
        made.settimeout(self._silent_s)
        return made

    def _receive(self, size: int) -> bytes:
        assert self._socket is not None
        received = bytearray()
        while len(received) < size:
            piece = self._socket.recv(min(size - len(received), 1 << 20))
            if not piece:
                raise EOFError("it ended")
            received += piece
        return bytes(received)


_started: Final[list[subprocess.Popen[bytes]]] = []
"""Children of this process: they outlive whoever started them, and are asked how they ended."""


class Starter:
    """Starts keepers, one at a time: one that is starting is waited for."""

    def __init__(self, place: KeeperPlace, namespace: Namespace, driver: Program) -> None:
        self._place, self._namespace, self._driver = place, namespace, driver
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        _started[:] = [process for process in _started if process.poll() is None]
        if self._process in _started:
            return
        # Spark may have put dlog on the path of this process alone.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        errors = os.open(self._place.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # A session of its own: what interrupts the driver must not interrupt a commit.
            self._process = subprocess.Popen(  # noqa: S603 - a command of our own making
                [
                    sys.executable, "-m", "dlog.spark.sink.keeper",
                    "--directory", os.fspath(self._place.directory), "--name", self._place.name,
                    "--driver", str(self._driver.pid), "--driver-started", self._driver.started,
                ],
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True,
                # Everybody sees the command line of a process, and a URI may have a password.
                env={**os.environ, "PYTHONPATH": path, **environment_of(self._namespace)},
            )  # fmt: skip
            _started.append(self._process)
        finally:
            os.close(errors)


def end_peer(connected: socket.socket) -> None:
    """Kill who listens at the other end, if it is of our user and the kernel tells."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    with suppress(OSError):
        found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, user, _ = _PEER.unpack(found)
        if user == os.getuid() and pid not in (0, os.getpid()):
            os.kill(pid, signal.SIGKILL)
