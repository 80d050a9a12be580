"""The metrics of ledgers in this process: what its writers, readers and recoveries did."""

from typing import Final

from ledger.metering.declaration import SECONDS, MetricRegistry

METRICS: Final[MetricRegistry[None]] = MetricRegistry()

# Writers.

ADDED_ENTRIES: Final = METRICS.tally(
    "dlog_ledger_added_entries_total", "Entries of this process that were confirmed."
)
REFUSED_ADDS: Final = METRICS.tally(
    "dlog_ledger_refused_adds_total",
    "Runs of entries that a bookie did not accept, by its status (unreachable: no reply); the "
    "writer sends them again, to it or to another one.",
    "status",
)
ENSEMBLE_CHANGES: Final = METRICS.tally(
    "dlog_ledger_ensemble_changes_total",
    "Changes of a writer's ensemble that were stored in the metadata store.",
)
FAILED_WRITERS: Final = METRICS.tally(
    "dlog_ledger_failed_writers_total",
    "Writers that ended with an error, by name of the error.",
    "error",
)

# Readers.

REFUSED_READS: Final = METRICS.tally(
    "dlog_ledger_refused_reads_total",
    "Reads that a bookie did not answer with entries, by its status (unreachable: no reply); "
    "another bookie is asked.",
    "status",
)
DIGEST_MISMATCHES: Final = METRICS.tally(
    "dlog_ledger_digest_mismatches_total",
    "Replies of bookies with an entry that differs from what its writer wrote.",
)
REPAIR_HINTS: Final = METRICS.tally(
    "dlog_ledger_repair_hints_total",
    "Entries that one bookie returned after another that should have them did not, by fault: "
    "missing, damaged.",
    "fault",
)

# The metadata store.

METADATA_DAMAGE: Final = METRICS.tally(
    "dlog_metadata_damage_total",
    "Calls that found the embedded metadata store damaged. Any is a reason to stop and restore it.",
)

# Recoveries.

RECOVERIES: Final = METRICS.tally(
    "dlog_ledger_recoveries_total",
    "Recoveries of ledgers that ended, by outcome: done, failed.",
    "how",
    known=[("done",), ("failed",)],
)
RECOVERY_S: Final = METRICS.spread(
    "dlog_ledger_recovery_seconds", "Duration of successful recoveries.", SECONDS
)
