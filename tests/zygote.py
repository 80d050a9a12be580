"""Starts programs of this repository as copies of a process that has imported them already.

A bookie computes for half a second before its own first line: Python and its modules. Tests start
hundreds of them, and of commands. A *zygote* for each program does that once for each process of
pytest, and forks. What comes out is a process like any other, with its own memory, descriptors,
session and signals, and a child of pytest: pytest waits for it and kills it, and it can die with
pytest.

A child of the zygote becomes pytest's as an orphan: the zygote forks twice, the process between
ends, and the kernel gives its child to the nearest ancestor that asks for orphans, as pytest does
at that moment (`prctl(2)`, PR_SET_CHILD_SUBREAPER).

Only a start that cannot tell the difference is served (`_is_served`). All others execute Python as
ever, as do all of them elsewhere than on Linux, and under `pytest -p no:tests.zygote`. What is
imported, and how long that takes, is no subject of a start that is served: tests of that use `-c`.
A copy has the command line of its zygote, so a test that finds processes by theirs needs a program
that is not in `PROGRAMS`.

A fork of pytest itself would bring its threads, event loops and patched modules along.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
_LOGS: Final = ("dlog.aio", "leader", "ledger", "pydantic_settings")
PROGRAMS: Final[Mapping[str, Sequence[str]]] = {
    "bookie": ("bookie", "ledger"),
    "bookie.autorecovery": ("bookie.autorecovery", "ledger"),
    "dlog.cli": (
        "dlog.cli",
        "bookie.autorecovery",
        "dlog.kafka",
        "rich.table",
        "typer._adapters",
        *_LOGS,
    ),
    "tests.bookie.small_bookie": ("bookie", "ledger"),
    "tests.dlog.replica_member": _LOGS,
    "tests.dlog.standby_member": _LOGS,
    "tests.integration.leading": _LOGS,
    "tests.leader.member": ("leader", "ledger"),
}
"""What may be started so, as `python -m`, and packages whose modules each imports sooner or later:
commands import theirs late."""
_READ_BEFORE: Final = ("GLIBC", "LANG", "LC_", "LD_", "MALLOC_", "OPENSSL", "PYTHON", "TZ")
"""How variables begin that are read before a program's first line."""
_PATH: Final = "PYTHONPATH"
_REQUEST_BYTES_MAX: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def pytest_configure() -> None:
    if sys.platform == "linux":
        _starter.install()


def pytest_unconfigure() -> None:
    if sys.platform == "linux":
        _starter.remove()


class Start(NamedTuple):
    """What `subprocess` asks of the system for one process; the fields are those of its
    `_fork_exec`, which in later versions has one more."""

    args: Sequence[Any]
    executables: Sequence[bytes]
    close_fds: bool
    kept_fds: Sequence[int]
    cwd: Any
    env: Sequence[bytes] | None
    p2cread: int
    p2cwrite: int
    c2pread: int
    c2pwrite: int
    errread: int
    errwrite: int
    errpipe_read: int
    errpipe_write: int
    restore_signals: bool
    new_session: bool
    group: int
    gid: Any
    gids: Any
    uid: Any
    umask: int
    preexec: Any

    @property
    def words(self) -> list[str]:
        return [os.fsdecode(word) for word in self.args]

    @property
    def program(self) -> tuple[bool, str]:
        """Return whether the working directory is left out of the path, and what `-m` names."""
        flags = self.words[1:4]
        safe = flags[:1] == ["-P"]
        is_module = flags[safe : safe + 1] == ["-m"]
        return safe, "".join(flags[safe + 1 : safe + 2]) if is_module else ""

    @property
    def environment(self) -> dict[str, str]:
        if self.env is None:
            return dict(os.environ)
        pairs = (os.fsdecode(pair).partition("=") for pair in self.env)
        return {name: value for name, _, value in pairs}

    @property
    def streams(self) -> list[int]:
        """Return the descriptors that become 0, 1 and 2."""
        given = (self.p2cread, self.c2pwrite, self.errwrite)
        return [number if fd < 0 else fd for number, fd in enumerate(given)]


def _is_served(start: Start) -> bool:
    """Return whether a copy of a zygote is what Python would become."""
    _, program = start.program
    environment = start.environment
    return (
        program in PROGRAMS
        and start.words[0] == sys.executable
        and list(start.executables) == [os.fsencode(sys.executable)]
        and start.close_fds
        and len(start.kept_fds) == 1  # the pipe of `subprocess` itself
        and start.group < 0
        and (start.gid, start.gids, start.uid, start.preexec) == (None, None, None, None)
        and start.umask < 0
        and os.path.realpath(start.cwd or ".") == str(ROOT)
        and environment.get(_PATH, str(ROOT)).split(os.pathsep)[0] == str(ROOT)
        and not any(map(os.isatty, start.streams))
    )


def _read_before(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    names = (name for name in environment if name.startswith(_READ_BEFORE) and name != _PATH)
    return [(name, environment[name]) for name in sorted(names)]


class _Starter:
    """In pytest: has the zygotes, and takes the place of `subprocess._fork_exec`."""

    def __init__(self) -> None:
        self._execute = subprocess._fork_exec  # type: ignore[attr-defined]
        self._zygotes: dict[tuple[str, str], socket.socket] = {}
        """By their programs, and what was read before those began."""
        self._lock = threading.Lock()
        self._pid = 0

    def install(self) -> None:
        self._pid = os.getpid()
        subprocess._fork_exec = self._start  # type: ignore[attr-defined]

    def remove(self) -> None:
        """End the zygotes; what they started lives on."""
        subprocess._fork_exec = self._execute  # type: ignore[attr-defined]
        for zygote in self._zygotes.values():
            zygote.close()
        self._zygotes.clear()

    def _start(self, *call: Any) -> int:
        start = Start._make(call[: len(Start._fields)])
        if self._pid != os.getpid() or not _is_served(start):  # a fork of pytest has no zygote
            return int(self._execute(*call))
        with self._lock:
            return self._ask(start)

    def _ask(self, start: Start) -> int:
        safe, program = start.program
        environment = start.environment
        key = program, json.dumps(_read_before(environment))
        zygote = self._zygotes.get(key)
        if zygote is None:
            zygote = self._zygotes[key] = self._zygote(program, environment)
        request = {
            "args": start.words[3 + safe :],
            "env": environment,
            "safe": safe,
            "session": bool(start.new_session),
            "umask": _umask(),
        }
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(zygote, [json.dumps(request).encode()], start.streams)
            answer = zygote.recv(64)
        finally:
            _prctl(_PR_SET_CHILD_SUBREAPER, 0)
        assert answer, f"the zygote of {program} has died"
        return int(answer)

    def _zygote(self, program: str, environment: dict[str, str]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.zygote", program, str(theirs.fileno())],
                env={**environment, _PATH: str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            ).returncode = 0  # it ends when `ours` is closed, and nobody waits for it
        return ours


def _umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def main(program: str, descriptor: int) -> None:
    """Be the zygote of *program* until pytest ends; in a copy, be the program."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    base = sys.path[1:]
    for package in PROGRAMS[program]:
        _import_all(package)
    gc.collect()
    gc.freeze()  # a copy shares what its collector never touches
    with socket.socket(fileno=descriptor) as pytest:
        request, streams = _next_copy(pytest)
    if request is None:
        return
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.umask(request["umask"])
    if request["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    own = [] if request["safe"] else [str(ROOT)]
    sys.path[:] = [*own, *filter(None, request["env"].get(_PATH, "").split(os.pathsep)), *base]
    sys.argv[1:] = request["args"]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def _import_all(name: str) -> None:
    """Import *name*, and of a package of ours all that is in it and can be had here."""
    module = importlib.import_module(name)
    if name.partition(".")[0] not in {"bookie", "dlog", "leader", "ledger"}:
        return
    for found in pkgutil.walk_packages(module.__path__, f"{name}."):
        if not found.name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):  # of an extra
                importlib.import_module(found.name)


def _next_copy(pytest: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return in a copy of this process, with what it is to be; or with None at the end."""
    while True:
        try:
            request, streams, _, _ = socket.recv_fds(pytest, _REQUEST_BYTES_MAX, 3)
        except KeyboardInterrupt:
            return None, []
        if not request:
            return None, []
        pids, says_pid = os.pipe()
        goes, lets_go = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                os.write(says_pid, b"%d" % child)
                os._exit(0)
            for fd in (pids, says_pid, lets_go):
                os.close(fd)
            os.read(goes, 1)  # until it is pytest's child
            os.close(goes)
            return json.loads(request), streams
        os.waitpid(between, 0)
        os.close(lets_go)
        pytest.send(os.read(pids, 32))
        for fd in (pids, says_pid, goes, *streams):
            os.close(fd)


_starter: Final = _Starter()

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
