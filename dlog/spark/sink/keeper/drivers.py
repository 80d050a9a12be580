"""Which driver a Python worker of Spark works for: its JVM.

Workers descend from it by way of a daemon. That one may die (for lack of memory, say), while Spark
goes on using the workers that it left behind; those still have their connection to the JVM.
"""

import itertools
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ANCESTORS_MAX: Final = 64
_JVM: Final = "java"
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group at the other end: unix(7)."""


@dataclass(frozen=True, slots=True)
class Program:
    """A process, told from another one that has its id later: an id comes again, but not together
    with the time at which its process began."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "Program | None":
        """Return the process that has this id now; None: there is none, or it has ended."""
        fields = _stat(pid)
        return None if fields is None or fields[1] in {"Z", "X"} else cls(pid, fields[20])


def own_driver() -> Program:
    """Return the JVM that this process works for; without one, this process, so that a keeper never
    outlives everybody who may ask it."""
    for pid in itertools.chain(_own_ancestors(), _own_peers()):
        if _is_jvm(pid) and (found := Program.of(pid)) is not None:
            return found
    own = Program.of(os.getpid())
    assert own is not None, "who runs has not ended"
    return own


def _own_ancestors() -> Iterator[int]:
    pid = os.getpid()
    for _ in range(_ANCESTORS_MAX):
        fields = _stat(pid)
        if fields is None:
            return
        pid = int(fields[2])
        yield pid


def _own_peers() -> Iterator[int]:
    """Yield processes of this machine to which this one has a connection."""
    own = _sockets(os.getpid())
    for descriptor in own.values():
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family == socket.AF_UNIX:
                size = _CREDENTIALS.size
                asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                yield _CREDENTIALS.unpack(asked)[0]
    table = list(_tcp_connections())
    far = {(remote, local) for local, remote, inode in table if inode in own}
    wanted = {inode for local, remote, inode in table if (local, remote) in far}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or not _is_jvm(int(path.name)):
            continue
        if not wanted.isdisjoint(_sockets(int(path.name))):
            yield int(path.name)


def _sockets(pid: int) -> dict[str, int]:
    """Return the sockets of a process: inodes, with a descriptor of each."""
    found: dict[str, int] = {}
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(path.readlink())
            except FileNotFoundError:
                continue  # closed meanwhile
            if target.startswith("socket:["):
                found[target[8:-1]] = int(path.name)
    except OSError:
        pass  # it has ended, or belongs to somebody else
    return found


def _tcp_connections() -> Iterator[tuple[str, str, str]]:
    """Yield local end, remote end and inode of this machine's connections: proc(5)."""
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:
            continue  # without IPv6
        for line in lines:
            fields = line.split()
            # The last 32 bits tell enough, and are the same for an IPv4 address written as IPv6.
            yield fields[1][-13:], fields[2][-13:], fields[9]


def _is_jvm(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] == _JVM


def _stat(pid: int) -> list[str] | None:
    """Return command, state, parent and so on, as in proc(5); None: there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    command, _, rest = text.partition("(")[2].rpartition(")")
    return [command, *rest.split()]
