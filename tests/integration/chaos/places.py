"""Where processes run: each in a network namespace of its own, whose link can be cut.

The whole run lives in one network namespace (see `enter`), so that nothing of it is seen
outside. Each place is a further one, joined to it by a pair of interfaces and a bridge. A
namespace is held by a process that dies with us, and goes with the last process in it: nothing
is left behind however the run ends. Where namespaces are not permitted every place is this
machine, and links cannot be cut.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dlog.local.zookeeper import dying_with_parent

_BRIDGE: Final = "chaos"
_SUBNET: Final = "10.77.0"
_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    host: str = "127.0.0.1"
    """The address of what runs here."""
    link: str = ""
    """Our end of its link; empty if it cannot be cut."""
    prefix: tuple[str, ...] = ()

    def command(self, command: Sequence[str]) -> list[str]:
        """Return *command* as it runs here, and dies with this process."""
        return [*self.prefix, *dying_with_parent(command, os.getpid())]

    async def cut(self) -> None:
        """Let nothing through in either direction; connections are not told."""
        await run("ip", "link", "set", self.link, "down")

    async def heal(self) -> None:
        await run("ip", "link", "set", self.link, "up")


@dataclass(slots=True)
class Places:
    """Makes places; *apart* says whether they are namespaces."""

    apart: bool
    _holders: list[subprocess.Popen[bytes]] = field(default_factory=list)

    async def prepare(self) -> None:
        if self.apart:
            await run("ip", "link", "set", "lo", "up")
            await run("ip", "link", "add", _BRIDGE, "type", "bridge")
            await run("ip", "addr", "add", f"{_SUBNET}.1/24", "dev", _BRIDGE)
            await run("ip", "link", "set", _BRIDGE, "up")

    async def make(self, name: str) -> Place:
        if not self.apart:
            return Place(name)
        number = len(self._holders) + 2
        holder = self._hold()
        async with asyncio.timeout(_PATIENCE_S):
            while not _is_apart(holder):  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(_POLL_S)
        link, host = f"to-{number}", f"{_SUBNET}.{number}"
        inside = ("nsenter", "-t", str(holder), "-n")
        peer = ("peer", "name", "eth0", "netns", str(holder))
        await run("ip", "link", "add", link, "type", "veth", *peer)
        await run("ip", "link", "set", link, "master", _BRIDGE, "up")
        await run(*inside, "ip", "link", "set", "lo", "up")
        await run(*inside, "ip", "addr", "add", f"{host}/24", "dev", "eth0")
        await run(*inside, "ip", "link", "set", "eth0", "up")
        return Place(name, host, link, inside)

    def _hold(self) -> int:
        holder = subprocess.Popen(
            ["unshare", "-n", *dying_with_parent(["sleep", "infinity"], os.getpid())],
            stdin=subprocess.DEVNULL,
        )
        self._holders.append(holder)
        return holder.pid

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()


async def run(*command: str) -> None:
    """Run a short command. Raises RuntimeError with what it said."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {said.decode().strip()}")


def _is_apart(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


def entering() -> tuple[list[str], str]:
    """Return what runs the rest of its line in a new namespace, or why there is none."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return [], f"{', '.join(missing)} is not installed"
    command = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    # All that a place needs, tried: a bridge, a pair of interfaces, a namespace in a namespace.
    trial = (
        "ip link add x type bridge && ip link add y type veth peer name z && "
        "unshare -n true && nsenter -t $$ -n true"
    )
    said = subprocess.run(
        [*command, "sh", "-c", trial],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    if said.returncode:
        return [], said.stderr.strip() or f"status {said.returncode}"
    return command, ""


def python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]
