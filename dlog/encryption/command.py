"""A command that wraps and unwraps data keys, so that a KMS can keep the wrapping keys.

It is run without a shell, and finds three lines on its standard input: `wrap` or `unwrap`, the name
of the wrapping key, and the data key or what it was wrapped into, in base64. It answers the other
one in base64, and ends with 0. Nothing secret stands among its arguments or in its environment.
"""

import base64
import os
import selectors
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from dlog.encryption.names import decoded
from dlog.errors import InvalidKeys, KeyCommandFailed

ANSWER_S: Final = 10.0
"""It is killed after so long, with all that it started."""
ANSWER_BYTES_MAX: Final = 16 * 1024
WRAPPED_BYTES_MAX: Final = 4096
"""Of what a data key is wrapped into: it is kept in the metadata of each ledger."""


class KeyCommand:
    """Raises `InvalidKeys` if *command* cannot be taken apart into words."""

    def __init__(self, command: str, *, answer_s: float = ANSWER_S) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise InvalidKeys("DLOG_KEY_COMMAND", f"it cannot be run: {error}") from error
        if not self._words:
            raise InvalidKeys("DLOG_KEY_COMMAND", "it is empty; name a program")
        self._name = Path(self._words[0]).name
        """All that errors tell of it: arguments may be secrets."""
        self._answer_s = answer_s

    def wrap(self, name: str, data_key: bytes) -> bytes:
        """Raises `KeyCommandFailed`, `InvalidKeys`."""
        wrapped = self._ask("wrap", name, data_key)
        if len(wrapped) > WRAPPED_BYTES_MAX:
            reason = f"it became {len(wrapped)} bytes, more than {WRAPPED_BYTES_MAX}"
            raise KeyCommandFailed(self._name, "wrap", name, reason)
        return wrapped

    def unwrap(self, name: str, wrapped: bytes) -> bytes:
        """Raises as `wrap`."""
        return self._ask("unwrap", name, wrapped)

    def _ask(self, doing: str, name: str, data: bytes) -> bytes:
        question = f"{doing}\n{name}\n{base64.b64encode(data).decode()}\n".encode()
        try:
            process = subprocess.Popen(  # noqa: S603 - it is the owner's of this process, no shell
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise InvalidKeys(
                "DLOG_KEY_COMMAND", f"{self._name} cannot be run: {error.strerror}"
            ) from error
        try:
            answer, code = _answer(process, question, time.monotonic() + self._answer_s)
        except TimeoutError:
            reason = f"it took longer than {self._answer_s:g} s"
            raise KeyCommandFailed(self._name, doing, name, reason) from None
        finally:
            _end(process)
        reason = ""
        found = b""
        if code != 0:
            reason = f"it ended with {code}"
        elif len(answer) > ANSWER_BYTES_MAX:
            reason = f"it answered more than {ANSWER_BYTES_MAX} bytes"
        else:
            try:
                found = decoded(answer.decode("ascii", errors="replace").strip())
            except ValueError:
                reason = "its answer is not base64"
            if not found:
                reason = reason or "it answered nothing"
        if reason:
            raise KeyCommandFailed(self._name, doing, name, reason)
        return found


def _answer(
    process: "subprocess.Popen[bytes]", question: bytes, deadline: float
) -> tuple[bytes, int]:
    """Return what it writes, up to a little more than it may, and what it ends with.

    Raises TimeoutError."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it may need nothing of it: what it answers counts
        process.stdin.write(question)  # less than a pipe takes
        process.stdin.close()
    answer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(answer) <= ANSWER_BYTES_MAX:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            more = _read(process.stdout)
            if not more:
                break
            answer += more
        else:
            return answer, 0
    try:
        return answer, process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None


def _read(pipe: IO[bytes]) -> bytes:
    return os.read(pipe.fileno(), ANSWER_BYTES_MAX + 1)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End it and what it started, unless it ended by itself, and let its pipes go."""
    if process.returncode is None:  # nobody has waited for it: its number is not given anew yet
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
