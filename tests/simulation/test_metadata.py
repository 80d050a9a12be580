"""The simulated metadata store: sessions of bookies."""

from ledger.ids import BookieId
from ledger.manager.layout import LAYOUTS
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.network import Network
from tests.simulation.kernel.scheduler import Scheduler
from tests.simulation.metadata import CALM_HEARTBEAT_S, HEARTBEAT_S, SimMetadata
from tests.simulation.oracle import Oracle


def test_a_bookie_that_restarts_in_calm_hours_is_registered_at_once_and_stays_so() -> None:
    scheduler = Scheduler(1)
    metadata = SimMetadata(scheduler, Network(scheduler), Oracle(), LAYOUTS["longhierarchical"])
    bookie = Host(scheduler, "b1")
    metadata.calm()
    metadata.register(bookie)
    _run(scheduler, 1.0)

    bookie.crash()
    bookie.start()
    metadata.register(bookie)
    registered = []
    for _ in range(6):
        _run(scheduler, CALM_HEARTBEAT_S)
        registered.append(metadata.available())

    assert registered == [(BookieId("b1"),)] * 6, "it went with the session of the life before"


def test_a_heartbeat_that_got_no_answer_is_repeated_soon_also_in_calm_hours() -> None:
    scheduler = Scheduler(1)
    network = Network(scheduler)
    metadata = SimMetadata(scheduler, network, Oracle(), LAYOUTS["longhierarchical"])
    bookie = Host(scheduler, "b1")
    metadata.calm()
    network.cut("b1", "metadata")
    metadata.register(bookie)
    _run(scheduler, 1.0)

    network.heal()
    _run(scheduler, 3 * HEARTBEAT_S)

    assert metadata.available() == (BookieId("b1"),)


def _run(scheduler: Scheduler, seconds: float) -> None:
    until_s = scheduler.now + seconds
    while (at_s := scheduler.next_time()) is not None and at_s <= until_s:
        scheduler.step()
    scheduler.now = until_s
