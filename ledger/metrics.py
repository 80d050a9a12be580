"""The metrics of ledgers in this process: what its writers, readers and recoveries did."""

from typing import Final

from ledger.metering.declaration import SECONDS, Declarations

METRICS: Final[Declarations[None]] = Declarations()

# Writers.

ADDED_ENTRIES: Final = METRICS.tally(
    "dlog_ledger_added_entries_total", "Entries of this process that were confirmed."
)
REFUSED_ADDS: Final = METRICS.tally(
    "dlog_ledger_refused_adds_total",
    "Runs of entries that a bookie did not take, by its answer (unreachable: there was none); the "
    "writer sends them again, to it or to another one.",
    "status",
)
ENSEMBLE_CHANGES: Final = METRICS.tally(
    "dlog_ledger_ensemble_changes_total",
    "Changes of a writer's ensemble that the metadata store took.",
)
FAILED_WRITERS: Final = METRICS.tally(
    "dlog_ledger_failed_writers_total", "Writers that ended with an error, by its name.", "error"
)

# Readers.

REFUSED_READS: Final = METRICS.tally(
    "dlog_ledger_refused_reads_total",
    "Reads that a bookie did not answer with entries, by its answer (unreachable: there was none); "
    "another bookie is asked.",
    "status",
)
DIGEST_MISMATCHES: Final = METRICS.tally(
    "dlog_ledger_digest_mismatches_total",
    "Answers of bookies with an entry that is not what its writer wrote.",
)
REPAIR_HINTS: Final = METRICS.tally(
    "dlog_ledger_repair_hints_total",
    "Entries that one bookie gave after another that should have it did not, by fault: missing, "
    "damaged.",
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
    "Recoveries of ledgers that ended, by how: done, failed.",
    "how",
    known=[("done",), ("failed",)],
)
RECOVERY_S: Final = METRICS.spread(
    "dlog_ledger_recovery_seconds", "How long recoveries took that were done.", SECONDS
)
