"""A gateway with a known bug, which a run has to find: `dlog kafka start` with one thing broken.

Call: python -m tests.integration.chaos.kafka_gateway BUG ARGUMENT...
"""

import sys
from collections.abc import Callable
from typing import Any, Final

from dlog.aio.port import Ledgers
from dlog.cli import main
from dlog.kafka.offsets_log import OffsetsLog
from dlog.kafka.partition import Partition, Produced
from dlog.kafka.producer_recovery import ProducerRecovery
from dlog.kafka.protocol.producer_state import ProducerState


def forgets_producers() -> None:
    """A takeover does not build the state of producers again."""

    async def run(self: ProducerRecovery) -> ProducerState:
        return ProducerState.rebuild(None, ())

    ProducerRecovery.run = run  # type: ignore[method-assign]


def acknowledges_unconfirmed() -> None:
    """A batch is acknowledged when it is submitted."""
    produce = Partition.produce

    async def without_waiting(self: Partition, batch: bytes, *, acks: int) -> Produced:
        assert acks
        return await produce(self, batch, acks=0)

    Partition.produce = without_waiting  # type: ignore[method-assign]


def forgets_commits() -> None:
    """A takeover of an offsets log does not read what is in it."""

    async def replay(self: OffsetsLog, ledgers: Ledgers) -> None:
        pass

    OffsetsLog._replay = replay  # type: ignore[method-assign]


BUGS: Final[dict[str, Callable[[], Any]]] = {
    bug.__name__: bug for bug in (forgets_producers, acknowledges_unconfirmed, forgets_commits)
}

if __name__ == "__main__":
    BUGS[sys.argv.pop(1)]()
    main()
