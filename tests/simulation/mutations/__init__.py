"""Known bugs, put back one at a time to see that the simulator finds them.

Each is a short function that changes production code, or the driver that stands where a
production driver stands, in this process only and for as long as its patch lasts. The
functions are named after the bug; `reference` says where it was found: an issue of Apache
BookKeeper, the number of the protocol rule that it breaks (docs/rules.md), or that of a
decision (docs/decisions.md). An own bug was in this project until the simulator found it.

Some also name the test that fails with them; those that no simulator draws name nothing else.
"""

from tests.simulation.gateways import mutations as gateways
from tests.simulation.logs import mutations as logs
from tests.simulation.mutations import (
    bookies,
    choosing,
    clients,
    degrading,
    disks,
    doubting,
    evicting,
    groups,
    identities,
    journals,
    recovering,
    repairing,
    stores,
    strangers,
    writing,
)
from tests.simulation.mutations.mutation import MUTATIONS, Mutation, put_back
from tests.simulation.partitions import mutations as partitions
from tests.simulation.replicas import mutations as replicas

__all__ = [
    "MUTATIONS",
    "Mutation",
    "bookies",
    "choosing",
    "clients",
    "degrading",
    "disks",
    "doubting",
    "evicting",
    "gateways",
    "groups",
    "identities",
    "journals",
    "logs",
    "partitions",
    "put_back",
    "recovering",
    "repairing",
    "replicas",
    "stores",
    "strangers",
    "writing",
]
