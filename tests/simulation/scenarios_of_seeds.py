"""What a seed can be a seed of: ledgers, logs on them, or ledgers that are repaired."""

from typing import Final

from tests.simulation.logs.workload import LogSimulation
from tests.simulation.repair.workload import RepairSimulation
from tests.simulation.workload import Simulation

LEDGERS: Final = "ledgers"
LOGS: Final = "logs"
REPAIR: Final = "repair"
SCENARIOS: Final[dict[str, type[Simulation | LogSimulation]]] = {
    LEDGERS: Simulation,
    LOGS: LogSimulation,
    REPAIR: RepairSimulation,
}
