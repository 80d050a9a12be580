"""The simulated network: delay, loss, duplication, reordering, partitions of each kind.

`send` is a datagram: it arrives late, twice, out of order or never. `request` is a call with
one answer: the caller hears it, or None, exactly once. `Stream` is what a transport's session
is: in order while it lives; it breaks as a whole, and what it carried may still arrive later.
A message to or from a paused host waits there; one to a host that is down is refused.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from tests.simulation.kernel.host import Host
from tests.simulation.kernel.scheduler import Action, Scheduler, Timer

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad the network is, as probabilities per message and seconds."""

    delay_min_s: float = 0.0002
    delay_max_s: float = 0.002
    slow: float = 0.0
    """Share of messages that take up to *slow_max_s*."""
    slow_max_s: float = 1.0
    slow_link: float = 0.0
    """Share of the ways from one host to another that are slow for all messages."""
    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    """Share of batches of entries of which one byte changes on the way, unnoticed by TCP."""


CALM = Weather()


@dataclass(frozen=True, slots=True)
class Aim:
    """Which of the next messages on one way are late, and how much."""

    slow_min_s: float
    slow_max_s: float
    first: int = 0
    last: int = 20


NO_AIM = Aim(0.0, 0.0, last=-1)


class Network:
    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.weather = CALM
        self._cut: dict[tuple[str, str], None] = {}
        self._slow_links: dict[tuple[str, str], bool] = {}
        self._aimed: dict[tuple[str, str], tuple[Aim, Iterator[int]]] = {}
        self._far: dict[str, tuple[float, float]] = {}
        """Hosts that are far away, and how long a message to or from them takes."""
        self._connections = 0

    def new_connection(self) -> int:
        """Return a number that no connection had before."""
        self._connections += 1
        return self._connections

    def cut(self, source: str, target: str) -> None:
        """Lose all messages from *source* to *target*: one way only."""
        self._cut[source, target] = None

    def mend(self, source: str, target: str) -> None:
        self._cut.pop((source, target), None)

    def aim(self, source: str, target: str, aim: "Aim") -> None:
        """Let the next messages on this way be as late as *aim* says."""
        self._aimed[source, target] = aim, count()

    def put_far_away(self, host: str, delay_s: tuple[float, float]) -> None:
        """Let each message to or from *host* take from *delay_s* to *delay_s*, always."""
        self._far[host] = delay_s

    def heal(self) -> None:
        """End all partitions and all bad weather, and bring everybody near."""
        self._far.clear()
        self._cut.clear()
        self._aimed.clear()
        self.weather = CALM

    def delay_s(self, source: Host, target: Host) -> float:
        """Draw how long one message takes on this way."""
        weather, random = self.weather, self.scheduler.random
        if self._far:
            far = self._far.get(source.name) or self._far.get(target.name)
            if far is not None:
                return random.uniform(*far)
        if self._aimed:
            aim, numbers = self._aimed.get((source.name, target.name), (NO_AIM, count()))
            if aim.first <= next(numbers) <= aim.last:
                return random.uniform(aim.slow_min_s, aim.slow_max_s)
        if weather.slow_link:
            way = source.name, target.name
            if way not in self._slow_links:
                self._slow_links[way] = self.scheduler.chance(weather.slow_link)
            if self._slow_links[way]:
                return random.uniform(weather.delay_max_s, weather.slow_max_s)
        if self.scheduler.chance(weather.slow):
            return random.uniform(weather.delay_max_s, weather.slow_max_s)
        return random.uniform(weather.delay_min_s, weather.delay_max_s)

    def loses(self, source: Host, target: Host) -> bool:
        """Draw whether one message on this way is lost."""
        if (source.name, target.name) in self._cut:
            self.scheduler.mark("message_cut_by_partition")
            return True
        if self.scheduler.chance(self.weather.loss):
            self.scheduler.mark("message_lost")
            return True
        return False

    def carry(self, frames: bytes | memoryview) -> bytes | memoryview:
        """Return what arrives of the bytes of some entries."""
        if not frames or not self.scheduler.chance(self.weather.corrupt):
            return frames
        self.scheduler.mark("message_corrupted")
        damaged = bytearray(frames)
        damaged[self.scheduler.random.randrange(len(damaged))] ^= 0x55
        return bytes(damaged)

    def send(self, target: Host, deliver: Action, *, source: Host) -> None:
        """Carry *deliver* to *target*, where it runs once, twice or never."""
        if self.loses(source, target):
            return
        if self.scheduler.chance(self.weather.duplicate):
            self.scheduler.mark("message_duplicated")
            self.scheduler.after(self.delay_s(source, target), partial(target.arrive, deliver))
        self.scheduler.after(self.delay_s(source, target), partial(target.arrive, deliver))

    def request(
        self,
        source: Host,
        target: Host,
        handle: Callable[[Callable[[Answer], None]], None],
        on_done: Callable[[Answer | None], None],
        *,
        timeout_s: float,
    ) -> None:
        """Run *handle(reply)* on *target*; give what it replies, or None, to *on_done*.

        *handle* may run twice (a duplicate); the first answer that arrives counts. None comes
        after *timeout_s*, or soon if the target is down; a source that dies hears nothing."""
        call = _Call(source, on_done)
        call.timer = source.after(timeout_s, partial(call.finish, None))
        if not target.up:
            source.after(self.delay_s(target, source), partial(call.finish, None))
            return

        def reply(answer: Answer) -> None:
            self.send(source, partial(call.finish, answer), source=target)

        self.send(target, partial(handle, reply), source=source)


class _Call(Generic[Answer]):
    """A call that is open: finished once, by its answer or by its time-out."""

    __slots__ = ("life", "on_done", "source", "timer")

    def __init__(self, source: Host, on_done: Callable[[Answer | None], None]) -> None:
        self.source, self.life = source, source.life
        self.on_done: Callable[[Answer | None], None] | None = on_done
        self.timer: Timer | None = None

    def finish(self, answer: Answer | None) -> None:
        on_done, self.on_done = self.on_done, None
        if self.timer is not None:
            self.timer.cancel()
        if on_done is not None and self.source.life == self.life:
            on_done(answer)


class Stream(Generic[Answer]):
    """Ordered requests from one host to another, answered in order, as over one connection.

    A lost message, a crash or a time-out breaks the connection: everything unanswered ends
    with None, in order, and the next request opens a new connection. What the old one still
    carries may arrive after that, and its answers are not heard."""

    def __init__(self, network: Network, source: Host, target: Host, *, timeout_s: float) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._timeout_s = timeout_s
        self._connection: _Connection[Answer] = _Connection(network.new_connection(), target.life)

    def request(
        self,
        handle: Callable[[int, Callable[[Answer], None]], None],
        on_done: Callable[[Answer | None], None],
    ) -> None:
        """Run *handle(connection, reply)* on the target after all requests before it."""
        network, scheduler = self._network, self._network.scheduler
        if not self._connection.slots and self._connection.target_life != self._target.life:
            self._connection = _Connection(network.new_connection(), self._target.life)
        connection = self._connection
        slot: _Slot[Answer] = _Slot(on_done)
        connection.slots.append(slot)
        slot.timer = self._source.after(self._timeout_s, partial(self._break, connection))
        if not self._target.up:
            self._source.after(self._back_s(), partial(self._break, connection))
            return
        if connection.stalled or network.loses(self._source, self._target):
            connection.stalled = True  # nothing later gets through either; the time-out ends it
            return
        if scheduler.chance(network.weather.duplicate):
            # Bytes of an earlier connection that arrive late and out of order.
            scheduler.mark("add_repeated_late")
            earlier = network.new_connection()
            late = partial(self._target.arrive, partial(handle, earlier, _ignore))
            scheduler.after(self._there_s() * 4, late)
        connection.arrives_at = max(connection.arrives_at, scheduler.now + self._there_s())
        reply = partial(self._answer, connection, slot)
        scheduler.after(
            connection.arrives_at - scheduler.now,
            partial(self._arrive, connection, partial(handle, connection.number, reply)),
        )

    def leads_to(self, target: Host) -> bool:
        """Whether *target* is at the other end."""
        return self._target is target

    @property
    def is_busy(self) -> bool:
        """Whether something is unanswered."""
        return bool(self._connection.slots)

    def reset(self) -> None:
        """Let the connection break now; what is on its way still arrives."""
        self._break(self._connection)

    def _there_s(self) -> float:
        return self._network.delay_s(self._source, self._target)

    def _back_s(self) -> float:
        return self._network.delay_s(self._target, self._source)

    def _arrive(self, connection: "_Connection[Answer]", deliver: Action) -> None:
        if self._target.up and self._target.life == connection.target_life:
            self._target.arrive(deliver)
        else:  # the process it was opened to is gone: the connection is reset
            self._source.after(self._back_s(), partial(self._break, connection))

    def _answer(
        self, connection: "_Connection[Answer]", slot: "_Slot[Answer]", answer: Answer
    ) -> None:
        """On the target: send *answer* back, behind the answers before it."""
        network, scheduler = self._network, self._network.scheduler
        if connection.deaf or network.loses(self._target, self._source):
            connection.deaf = True
            return
        connection.answered_at = max(connection.answered_at, scheduler.now + self._back_s())
        heard = partial(self._source.arrive, partial(self._hear, connection, slot, answer))
        scheduler.after(connection.answered_at - scheduler.now, heard)

    def _hear(
        self, connection: "_Connection[Answer]", slot: "_Slot[Answer]", answer: Answer
    ) -> None:
        if connection.broken:
            return
        slot.answer, slot.answered = answer, True
        while connection.slots and connection.slots[0].answered:
            connection.slots.popleft().finish()

    def _break(self, connection: "_Connection[Answer]") -> None:
        if connection.broken:
            return
        connection.broken = True
        network = self._network
        network.scheduler.mark("connection_broken")
        if self._connection is connection:
            self._connection = _Connection(network.new_connection(), self._target.life)
        slots, connection.slots = connection.slots, deque()
        for slot in slots:
            slot.answer = None
            slot.finish()


class _Connection(Generic[Answer]):
    __slots__ = (
        "answered_at", "arrives_at", "broken", "deaf", "number", "slots", "stalled",
        "target_life",
    )  # fmt: skip

    def __init__(self, number: int, target_life: int) -> None:
        self.number = number
        self.target_life = target_life
        self.slots: deque[_Slot[Answer]] = deque()
        self.arrives_at = 0.0
        self.answered_at = 0.0
        self.stalled = False
        """A request was lost: nothing later on this connection arrives either."""
        self.deaf = False
        """An answer was lost: nothing later on this connection is heard either."""
        self.broken = False


class _Slot(Generic[Answer]):
    __slots__ = ("answer", "answered", "on_done", "timer")

    def __init__(self, on_done: Callable[[Answer | None], None]) -> None:
        self.on_done = on_done
        self.answer: Answer | None = None
        self.answered = False
        self.timer: Timer | None = None

    def finish(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.on_done(self.answer)


def _ignore(_answer: object) -> None:
    """Nobody listens to this answer any more."""
