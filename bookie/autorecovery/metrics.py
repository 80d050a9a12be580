"""The metrics of a process of repair: worker, auditor, and what the cluster has left to do."""

import asyncio
import math
from dataclasses import dataclass
from typing import Final

from bookie.autorecovery.auditor import Auditor
from bookie.autorecovery.status import OpenWork, open_work
from bookie.autorecovery.worker import Worker
from ledger.errors import LogError
from ledger.log_events import get_logger
from ledger.metastore.port import MetadataStore
from ledger.metering.declaration import MetricRegistry, Readiness

COUNT_S: Final = 15.0
"""How often the auditor counts what is left to repair."""

_log = get_logger(__name__)


@dataclass(slots=True)
class Repairing:
    """One process of repair."""

    store: MetadataStore
    worker: Worker
    auditor: Auditor
    work: OpenWork | None = None
    """As the auditor counted it last; None in all other processes."""

    def readiness(self) -> Readiness:
        """Ready while the metadata store knows the process: nobody asks it for anything."""
        if self.store.session.lost.is_set():
            reason = "the session of the metadata store is lost"
            return Readiness(ready=False, state="cut off", reasons=(reason,))
        resting = () if self.worker.enabled else ("repair is switched off",)
        state = "auditor" if self.auditor.counts.leads else "worker"
        return Readiness(ready=True, state=state, reasons=resting)

    async def keep_counting(self) -> None:
        """Count what is left to repair, while this is the auditor, until cancelled."""
        while True:
            try:
                leads = self.auditor.counts.leads
                self.work = await open_work(self.store) if leads else None
            except LogError as error:
                _log.debug("open_work_not_counted", reason=str(error))
            await asyncio.sleep(COUNT_S)


METRICS: Final[MetricRegistry[Repairing]] = MetricRegistry()

# The worker.

METRICS.counter(
    "dlog_repair_ledgers_total",
    "Repairs that ended, by outcome: done, deferred, busy (another worker has it), broken_off.",
    lambda repair: {
        outcome.name.lower(): count for outcome, count in list(repair.worker.outcomes.items())
    },
    "outcome",
)
METRICS.counter(
    "dlog_repair_copied_entries_total",
    "Entries that were copied.",
    lambda repair: repair.worker.pace.entries,
)
METRICS.counter(
    "dlog_repair_copied_bytes_total",
    "Bytes of entries that were copied.",
    lambda repair: repair.worker.pace.bytes,
)
METRICS.counter(
    "dlog_repair_interruptions_total",
    "Scans of all marks that an error of the metadata store interrupted.",
    lambda repair: repair.worker.interruptions,
)
METRICS.gauge(
    "dlog_repair_deferred_ledgers",
    "Marked ledgers whose next attempt was in the future at the worker's last scan.",
    lambda repair: repair.worker.deferred,
)
METRICS.gauge(
    "dlog_repair_throttle_bytes_per_second",
    "Bytes that this process may copy a second; 0: no limit.",
    lambda repair: repair.worker.pace.bytes_per_s,
)
METRICS.gauge(
    "dlog_repair_enabled",
    "0 while an operator has disabled repair.",
    lambda repair: int(repair.worker.enabled),
)

# What the cluster has left to do, as the auditor counts it.

METRICS.gauge(
    "dlog_repair_open_ledgers",
    "Underreplicated ledgers of the cluster; exported by the auditor only.",
    lambda repair: None if repair.work is None else repair.work.ledgers,
)
METRICS.gauge(
    "dlog_repair_rate_bytes_per_second",
    "Bytes that all autorecovery processes copied a second recently; exported by the auditor only.",
    lambda repair: None if repair.work is None else repair.work.bytes_per_s,
)
METRICS.gauge(
    "dlog_repair_left_seconds",
    "Remaining time for the underreplicated ledgers at this rate; exported by the auditor only, "
    "NaN if unknown.",
    lambda repair: _left(repair.work),
)

# The auditor.

METRICS.gauge(
    "dlog_auditor_leads",
    "1 in the process that is the auditor.",
    lambda repair: int(repair.auditor.counts.leads),
)
METRICS.counter(
    "dlog_auditor_terms_total",
    "How often this process became the auditor.",
    lambda repair: repair.auditor.counts.terms,
)
METRICS.counter(
    "dlog_auditor_passes_total",
    "Passes over all ledgers, including those that found that none was needed.",
    lambda repair: repair.auditor.counts.passes,
)
METRICS.counter(
    "dlog_auditor_checks_total",
    "Checks that were finished, by kind: of the entries that bookies hold (ledgers), placement, "
    "replicas.",
    lambda repair: repair.auditor.counts.checks,
    "kind",
)
METRICS.counter(
    "dlog_auditor_failures_total",
    "Elections, passes and checks that were interrupted.",
    lambda repair: repair.auditor.counts.failures,
    "what",
)
METRICS.counter(
    "dlog_auditor_marked_ledgers_total",
    "Ledgers that were marked as underreplicated.",
    lambda repair: repair.auditor.counts.marked,
)
METRICS.gauge(
    "dlog_auditor_lost_bookies",
    "Bookies that were lost when the last pass of this process ended.",
    lambda repair: repair.auditor.counts.lost,
)
METRICS.gauge(
    "dlog_auditor_alarm",
    "1 if the last pass of this process marked nothing because more than half of the bookies are "
    "lost.",
    lambda repair: int(repair.auditor.counts.alarm),
)
METRICS.gauge(
    "dlog_auditor_last_pass_timestamp_seconds",
    "Time at which the last pass of this process ended, 0 if none did.",
    lambda repair: repair.auditor.counts.last_pass_ms / 1000,
)


def _left(work: OpenWork | None) -> float | None:
    if work is None:
        return None
    return math.nan if work.left_s is None else work.left_s
