"""TCP between simulated processes, as far as lifelines use it; `leader.lifeline` runs on it.

A machine answers for its processes: it takes connections to a port that listens also while the
process is paused, refuses those to any other port, and closes those of a process that died. A
machine without power says nothing. What the network loses is sent again, for a while. The address
127.0.0.1 means whoever asks; ports are counted from the same number on every machine.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leader.refusals import Refusals
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.scheduler import Action

if TYPE_CHECKING:
    from tests.simulation.logs.process import Process

LOOPBACK: Final = "127.0.0.1"
FIRST_PORT: Final = 30_000
SEND_AGAIN_S: Final = 1.0
SENDS_MAX: Final = 20


class Machine:
    """One network stack; several processes may share it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listening: dict[int, Listening] = {}
        self.has_power = True
        self._ports = 0

    def next_port(self) -> int:
        self._ports += 1
        return FIRST_PORT + self._ports


class Readable:
    """What a loop waits for until something can be read from it."""

    def __init__(self, sockets: "Sockets") -> None:
        self.sockets = sockets
        self._reader: Callable[[], object] | None = None
        self.closed = False

    def is_readable(self) -> bool:
        raise NotImplementedError

    def set_reader(self, reader: Callable[[], object] | None) -> None:
        self._reader = reader
        self.wake()

    def wake(self) -> None:
        """Let the loop see that there may be something to read."""
        if self._reader is not None and self.is_readable():
            self.sockets.process.loop.call_soon(self._read)

    def _read(self) -> None:
        if self._reader is not None and self.is_readable():
            self._reader()
            self.wake()

    def fileno(self) -> int:
        return -1 if self.closed else 1

    def setblocking(self, flag: bool) -> None:
        assert not flag


class Listening(Readable):
    def __init__(self, sockets: "Sockets", address: str) -> None:
        super().__init__(sockets)
        self.address, self.port = address, sockets.machine.next_port()
        self._backlog: deque[Accepted] = deque()
        sockets.machine.listening[self.port] = self

    def is_readable(self) -> bool:
        return bool(self._backlog)

    def getsockname(self) -> tuple[str, int]:
        return self.address, self.port

    def accept(self) -> "tuple[Accepted, object]":
        if not self._backlog:
            raise BlockingIOError
        return self._backlog.popleft(), None

    def take(self, peer: "Connected") -> None:
        """The machine takes a connection; the process hears of it once it runs."""
        self._backlog.append(Accepted(self.sockets, peer))
        self.sockets.process.host.arrive(self.wake)

    def close(self) -> None:
        self.closed = True
        self.sockets.machine.listening.pop(self.port, None)
        for each in self._backlog:
            each.close()


class Accepted(Readable):
    """The end of a connection at the process that listens."""

    def __init__(self, sockets: "Sockets", peer: "Connected") -> None:
        super().__init__(sockets)
        self._peer = peer
        self._is_over = False
        peer.other = self
        sockets.open[self] = None

    def is_readable(self) -> bool:
        return self._is_over

    def recv(self, _size: int) -> bytes:
        if not self._is_over:
            raise BlockingIOError
        return b""

    def send(self, data: bytes) -> int:
        self.sockets.carry(self._peer.sockets, partial(self._peer.hear, data))
        return len(data)

    def hear_end(self) -> None:
        self._is_over = True
        self.wake()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.sockets.open.pop(self, None)
            self.sockets.carry(self._peer.sockets, self._peer.hear_end)


class Connected(asyncio.Transport):
    """The end of a connection at the process that asked for it."""

    def __init__(self, sockets: "Sockets", protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        assert isinstance(protocol, asyncio.Protocol)
        self.sockets = sockets
        self.other: Accepted | None = None
        self.protocol = protocol
        self._early: list[Action] | None = []
        """What arrived before the process knew that it is connected; None: it knows."""
        self._closed = False
        sockets.open[self] = None

    def begin(self) -> None:
        early, self._early = self._early or [], None
        self.protocol.connection_made(self)
        for action in early:
            self._do(action)

    def hear(self, data: bytes) -> None:
        self._do(partial(self.protocol.data_received, data))

    def hear_end(self) -> None:
        self._do(self._end)

    def _do(self, action: Action) -> None:
        if self._closed:
            return
        if self._early is None:
            self.sockets.process.loop.call_soon(action)
        else:
            self._early.append(action)

    def _end(self) -> None:
        self.protocol.eof_received()
        self.close()

    def is_closing(self) -> bool:
        return self._closed

    def pause_reading(self) -> None:
        """There is never much to read."""

    def resume_reading(self) -> None:
        """It goes on anyway."""

    def abort(self) -> None:
        """Nothing waits to be sent."""
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.sockets.open.pop(self, None)
        if self._early is None:
            self.sockets.process.loop.call_soon(self.protocol.connection_lost, None)
        if self.other is not None:
            self.sockets.carry(self.other.sockets, self.other.hear_end)


class Sockets:
    """All of one process."""

    def __init__(self, process: "Process", machine: Machine, address: str) -> None:
        self.process, self.machine, self.address = process, machine, address
        self.refusals = Refusals()
        self.open: dict[Accepted | Connected, None] = {}
        self._arrives_at: dict[str, float] = {}
        """When what was sent last to each process arrives: TCP keeps the order."""

    @property
    def is_open(self) -> bool:
        """Whether anybody could learn of the end of this process."""
        mine = (each for each in self.machine.listening.values() if each.sockets is self)
        return bool(self.open) or next(mine, None) is not None

    def listens(self, port: int) -> bool:
        """Return whether this process itself listens at *port*."""
        listening = self.machine.listening.get(port)
        return listening is not None and listening.sockets is self

    # What `leader.lifeline` takes from the module `socket`.

    def listen(self, address: str) -> Listening:
        return Listening(self, address)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Raises `ConnectionRefusedError`; waits for ever for a machine that says nothing."""
        process, loop = self.process, self.process.loop
        machine = self.machine if host == LOOPBACK else process.world.machines[host]
        connection = Connected(self, factory())
        taken: asyncio.Future[bool] = loop.create_future()

        def settle(answer: bool) -> None:
            if not taken.done():
                taken.set_result(answer)

        def ask() -> None:
            listening = machine.listening.get(port)
            if not machine.has_power:
                process.mark("lifeline_silent")
            elif listening is not None:
                listening.sockets.carry(self, partial(loop.call_soon, settle, True))
                listening.take(connection)
            else:
                refused = partial(loop.call_soon, settle, False)
                self._send(process.host, process.host, partial(process.host.arrive, refused))

        try:
            self._send(process.host, self._any_host_of(machine), ask)
            is_taken = await taken
        except asyncio.CancelledError:
            connection.close()
            raise
        if not is_taken:
            connection.close()
            process.mark("lifeline_refused")
            raise ConnectionRefusedError(f"{host}:{port} refuses")
        connection.begin()
        return connection, connection.protocol

    def carry(self, target: "Sockets", deliver: Action) -> None:
        """Let *deliver* run at *target*, behind what was sent there before."""
        if self.machine.has_power:
            hosts = self.process.host, target.process.host
            arrive = partial(hosts[1].arrive, deliver)
            self._send(*hosts, arrive, in_order=True)

    def die(self, *, silently: bool) -> None:
        """The process is gone; its machine says so, or has lost its power as well."""
        if silently:
            self.machine.has_power = False
        for listening in list(self.machine.listening.values()):
            if listening.sockets is self:
                listening.close()
        for each in list(self.open):
            each.close()

    def _send(
        self, source: Host, target: Host, deliver: Action, *, in_order: bool = False, sends: int = 1
    ) -> None:
        network, scheduler = self.process.world.network, self.process.world.scheduler
        if network.loses(source, target):
            if sends < SENDS_MAX:
                again = partial(self._send, source, target, deliver)
                scheduler.after(SEND_AGAIN_S, partial(again, in_order=in_order, sends=sends + 1))
            return
        at_s = scheduler.now + network.delay_s(source, target)
        if in_order:
            at_s = max(at_s, self._arrives_at.get(target.name, 0.0))
            self._arrives_at[target.name] = at_s
        scheduler.after(at_s - scheduler.now, deliver)

    def _any_host_of(self, machine: Machine) -> Host:
        for process in self.process.world.processes:
            if process.sockets.machine is machine:
                return process.host
        return self.process.host


class SocketModule:
    """Stands for the module `socket` where `leader.lifeline` uses it."""

    AF_INET: Final = socket.AF_INET
    AF_INET6: Final = socket.AF_INET6
    socket: Final = socket.socket

    @staticmethod
    def create_server(address: tuple[str, int], *, family: int) -> Any:
        assert family == socket.AF_INET
        return _here().listen(address[0])


def network_here() -> str:
    """Stand for `leader.lifeline.network`."""
    return _here().machine.name


def refusals_here() -> Refusals:
    """What the running process remembers of ports that refused."""
    return _here().refusals


def _here() -> Sockets:
    sockets = getattr(asyncio.get_running_loop(), "sockets", None)
    assert isinstance(sockets, Sockets), "runs in a simulated process"
    return sockets
