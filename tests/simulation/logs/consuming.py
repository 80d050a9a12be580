"""A process that reads a log as a named consumer, commits now and then, and comes back."""

import asyncio
from typing import Final

from dlog.aio.log import Log
from dlog.aio.read.consumer import Consumer
from dlog.errors import ConsumerBusy, ConsumerFenced, NoSuchConsumer, NoSuchLog, Trimmed
from ledger.errors import LogError
from tests.simulation.logs.oracle import Reading, Seen
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile
from tests.simulation.logs.reading import POLL_S, RETRY_S

WAIT_S: Final = 0.5
"""How long an exclusive open waits for whoever has the consumer."""


class ConsumingClient:
    """One of the processes that share the consumer *consumer* of a log."""

    def __init__(
        self, process: Process, name: str, consumer: str, profile: LogProfile, *, exclusive: bool
    ) -> None:
        self.process = process
        self.name = name
        self.finishing = False
        """Set once nothing is appended any more: commit up to the end, then stop."""
        self._consumer = consumer
        self._exclusive = exclusive
        self._profile = profile
        self._random = process.world.scheduler.random
        self._committed = -1

    @property
    def wanted(self) -> str:
        """Say what is missing, for a run that does not finish."""
        at = f"{self.process.name} committed {self._committed}"
        return f"{at} in {self.name}"

    async def run(self) -> None:
        over = False
        while not over:
            try:
                handle = await Log.consumer(
                    self._consumer,
                    self.name,
                    exclusive=self._exclusive,
                    wait_s=WAIT_S,
                    on_trimmed="skip",
                    client=self.process.ledgers,
                )
            except LogError as error:
                over = self._not_opened(error)
                await asyncio.sleep(RETRY_S)
                continue
            self.process.note(
                f"consumes {self.name} as {self._consumer} from {handle.position}, "
                f"epoch {handle.epoch}"
            )
            self.process.mark("consumer_opened")
            try:
                over = await self._consume(handle)
            except (ConsumerFenced, NoSuchConsumer, NoSuchLog, Trimmed) as error:
                self._failed(error)
            except LogError as error:
                if not error.retryable:
                    raise
                self._failed(error)
            finally:
                await handle.close()

    def _not_opened(self, error: LogError) -> bool:
        """Return whether to give up."""
        expected = isinstance(error, ConsumerBusy | NoSuchLog | Trimmed | NoSuchConsumer)
        if not expected and not error.retryable:
            raise error
        self._failed(error)
        return isinstance(error, NoSuchLog) and self.finishing

    async def _consume(self, handle: Consumer) -> bool:
        """Read and commit until it is time to let go; return whether all is done."""
        logs = self.process.world.logs
        incarnation = handle._opened.log_incarnation
        identity = handle._opened.incarnation
        reading: Reading = logs.reads(incarnation, self.process.name, handle.position)
        while True:
            records = await handle.read_batch(timeout_s=POLL_S)
            for record in records:
                seen = Seen(
                    self.process.name, record.offset, record.dlsn, record.txid, record.value
                )
                logs.read(incarnation, reading, seen)
                logs.consumed(identity, record.offset)
            finished = self.finishing and handle.position >= logs.histories[incarnation].end
            if finished or self._random.random() < self._profile.commits:
                before, began_in = handle.committed, logs.consumer_epoch(identity)
                self._committed = await handle.commit()
                self.process.mark("consumer_committed")
                self.process.note(f"has committed {self._committed} as {self._consumer}")
                if self._committed > before:
                    logs.committed(identity, self.process.name, handle.epoch, began_in)
            finished |= handle.at_end
            if finished:
                self.process.mark("consumer_reached_end")
                return True
            if not self.finishing and self._random.random() < self._profile.restarts:
                return False

    def _failed(self, error: LogError) -> None:
        self.process.note(f"{self.name} as {self._consumer}: {error}")
        self.process.mark(f"consumer_{type(error).__name__}")
