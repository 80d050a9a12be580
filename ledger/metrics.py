"""The metrics of ledgers in this process: what its writers, readers and recoveries did."""

from typing import Final

from ledger.metering.declaring import Declarations

METRICS: Final[Declarations[None]] = Declarations()

ENSEMBLE_CHANGES: Final = METRICS.tally(
    "dlog_ledger_ensemble_changes_total",
    "Changes of a writer's ensemble that the metadata store took.",
)
