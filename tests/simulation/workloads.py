"""What a seed can be a seed of: ledgers, logs on them, partitions of Kafka, the gateways that lead
them, repair, or replicas of a state machine."""

from typing import Final

from tests.simulation.gateways.workload import GatewaySimulation
from tests.simulation.kernel.simulation import Simulation
from tests.simulation.logs.workload import LogSimulation
from tests.simulation.partitions.workload import PartitionSimulation
from tests.simulation.repair.workload import RepairSimulation
from tests.simulation.replicas.workload import ReplicaSimulation
from tests.simulation.workload import LedgerSimulation

WORKLOADS: Final[dict[str, type[Simulation]]] = {
    workload.name: workload
    for workload in (
        LedgerSimulation,
        LogSimulation,
        PartitionSimulation,
        GatewaySimulation,
        RepairSimulation,
        ReplicaSimulation,
    )
}
