"""Three ZooKeeper servers that elect a leader among themselves, each in a place of its own."""

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from dlog.local.zookeeper import ManagedZooKeeper
from tests.bookie.processes import own_port
from tests.integration.chaos.places import Place

_START_S = 60.0


class Server(ManagedZooKeeper):
    """Server *number* of an ensemble; *servers* are the lines that name them all."""

    def __init__(
        self, directory: Path, place: Place, *, number: int, port: int, servers: Sequence[str]
    ) -> None:
        super().__init__(directory, port=port)
        self.host = place.host
        self.place = place
        self._number = number
        self._servers = servers

    async def start(self, *, timeout_s: float = _START_S) -> "Server":
        """Start it; it serves once it and others are more than half."""
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self._number}\n")
        return await super().start(timeout_s=timeout_s)

    def _configuration(self) -> str:
        lines = ["initLimit=20", "syncLimit=6", *self._servers]
        return super()._configuration() + "\n".join(lines) + "\n"

    def _port_is_free(self) -> bool:
        return self.host != Server.host or super()._port_is_free()  # alone in its own namespace

    def _spawn(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.place.command(command),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Ensemble:
    """The servers in *places*; `start` them, and `stop` them also if that failed."""

    def __init__(self, directory: Path, places: Sequence[Place]) -> None:
        ports = free_ports(3 * len(places))
        numbered = list(enumerate(places, 1))
        lines = [
            f"server.{number}={place.host}:{ports.pop()}:{ports.pop()}"
            for number, place in numbered
        ]
        self.servers = [
            Server(directory / place.name, place, number=number, port=ports.pop(), servers=lines)
            for number, place in numbered
        ]

    def uri(self, root: str) -> str:
        return f"zk://{','.join(server.hosts for server in self.servers)}{root}"

    async def start(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for server in self.servers:
                    group.create_task(server.start())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def of_mode(self, mode: str) -> Server | None:
        """Return a server that says it is *mode*: leader (also of itself alone) or follower."""
        wanted = ("leader", "standalone") if mode == "leader" else (mode,)
        modes = await asyncio.gather(*(server.mode() for server in self.servers))
        return next(
            (s for s, said in zip(self.servers, modes, strict=True) if said in wanted), None
        )


def free_ports(count: int) -> list[int]:
    """Return ports to which servers may come back, all different."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(own_port())
    return sorted(ports)
