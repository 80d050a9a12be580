"""A simulated process of logs: it may be found by its lifeline, and ends when its work is done."""

from typing import TYPE_CHECKING, Any

from ledger.ids import BookieId
from ledger.requests import AddRun
from tests.simulation.kernel.sockets import Machine, Sockets
from tests.simulation.logs.requests import Request
from tests.simulation.oracle import DegradedChoice
from tests.simulation.process import SimProcess

if TYPE_CHECKING:
    from tests.simulation.logs.world import World


class Process(SimProcess):
    world: "World"

    def __init__(self, world: "World", name: str, machine: Machine, address: str) -> None:
        """*address* is where other processes find it, as it believes."""
        super().__init__(world, name)
        self.sockets = self.loop.sockets = Sockets(self, machine, address)

    @property
    def lifeline_host(self) -> str | None:
        """Where it says that it can be reached, if it does."""
        return self.sockets.address if self.world.lifelines else None

    def request(self, name: str) -> Request:
        """Begin to do something to the log of that name: what is looked at from now on shows which
        one is meant."""
        self.store.first_values = {}
        return Request(name, self.store.first_values.get)

    def crash(self) -> None:
        if self.host.up:
            self.host.crash()
            self.sockets.die(silently=self.world.loses_power(self))

    def chose_degraded(self, choice: DegradedChoice) -> None:
        self.world.logs.degraded_choices.append(choice)

    def sends(self, bookie: BookieId, run: AddRun) -> None:
        if run.recovery:
            self.world.copied(self, bookie, run)
        super().sends(bookie, run)

    def _done(self, task: Any) -> None:
        super()._done(task)
        if not self._running:
            self.host.crash("ends")
            self.sockets.die(silently=False)
