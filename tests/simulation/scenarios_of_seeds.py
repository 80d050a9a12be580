"""What a seed can be a seed of: ledgers, logs on them, replicas of a state machine, or repair."""

from typing import Final

from tests.simulation.logs.workload import LogSimulation
from tests.simulation.repair.workload import RepairSimulation
from tests.simulation.replicas.workload import ReplicaSimulation
from tests.simulation.workload import Simulation

LEDGERS: Final = "ledgers"
LOGS: Final = "logs"
REPAIR: Final = "repair"
REPLICAS: Final = "replicas"
SCENARIOS: Final[dict[str, type[Simulation | LogSimulation]]] = {
    LEDGERS: Simulation,
    LOGS: LogSimulation,
    REPAIR: RepairSimulation,
    REPLICAS: ReplicaSimulation,
}
