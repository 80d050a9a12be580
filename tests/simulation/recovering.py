"""A client that recovers a ledger, by production's driver of a recovery."""

from typing import Final

from ledger.errors import LogError, MetadataUnavailable, NoSuchLedger, RecoveryFailed
from ledger.protocol.recovery_events import RecoveryFailure
from ledger.recovery import recover
from tests.simulation.client import PASSWORD, ClientProcess

UNDECIDED: Final = {failure.value: failure.name.lower() for failure in RecoveryFailure}
"""Names of failures, by what they say."""


class RecoveringClient(ClientProcess):
    def begin(self) -> None:
        """Read the metadata, as long as it takes, then recover."""
        self.run(self._recover())

    async def _recover(self) -> None:
        ledgers, environment = self.ledgers, self.ledgers.environment
        while True:
            try:
                metadata, version = await ledgers.ledgers.read(self.ledger_id)
                break
            except MetadataUnavailable:
                continue
            except NoSuchLedger:
                self.done = True
                return
        self.note(f"recovers from version {version}")
        credentials = ledgers.credentials(self.ledger_id, metadata, PASSWORD)
        try:
            closed = await recover(environment, credentials, metadata, version)
        except LogError as error:
            self._gives_up(error)
            return
        self.note(f"knows the end: {closed.last_entry}")
        self.mark("recovered")
        self.done = True
        self.cluster.oracle.concluded(self.ledger_id, closed, who=self.name)

    def _gives_up(self, error: LogError) -> None:
        failure = type(error).__name__
        if isinstance(error, NoSuchLedger):
            failure = "deleted"
        elif isinstance(error, RecoveryFailed):
            failure = UNDECIDED.get(error.reason, failure)
        self.note(f"gives up: {failure.replace('_', ' ')}")
        self.mark(f"recovery_failed_{failure}")
        self.done = True

    def wants_replacements(self) -> None:
        self.mark("recovery_ensemble_change")
