"""One process of repair: it stands for election as auditor, and works on what is marked."""

import asyncio
from dataclasses import dataclass, field

import leader.metrics
import ledger.metrics
from bookie.autorecovery.auditor import Auditor
from bookie.autorecovery.metrics import METRICS, Repairing
from bookie.autorecovery.options import MIB
from bookie.autorecovery.protocol.audit import AuditConfig
from bookie.autorecovery.protocol.repair import RepairConfig
from bookie.autorecovery.worker import Worker, WorkerConfig, keep_reporting, keep_throttled
from ledger.client import LedgerClient
from ledger.log_events import get_logger
from ledger.metering.declaration import Exposed

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutorecoveryConfig:
    audit: AuditConfig = field(default_factory=AuditConfig)
    work: WorkerConfig = field(default_factory=WorkerConfig)


def config_of(delay_s: float, grace_s: float, rate: float, ledgers: int) -> AutorecoveryConfig:
    """Return the configuration that the options say; *rate* in MiB a second."""
    return AutorecoveryConfig(
        audit=AuditConfig(delay_s=delay_s),
        work=WorkerConfig(
            bytes_per_s=rate * MIB,
            ledgers_max=ledgers,
            repair=RepairConfig(open_fragment_grace_ms=round(grace_s * 1000)),
        ),
    )


async def run_autorecovery(
    client: LedgerClient, config: AutorecoveryConfig, exposed: Exposed | None = None
) -> None:
    """Run until cancelled; what is under way is safe to leave. Raises what is a fault of ours.

    *exposed* gets its metrics."""
    worker = Worker(client, config.work)
    auditor = Auditor(client, config.audit)
    repairing = Repairing(client.store, worker, auditor)
    if exposed is not None:
        exposed.add(METRICS, repairing)
        exposed.add(ledger.metrics.METRICS)
        exposed.add(leader.metrics.METRICS)
        exposed.readiness = repairing.readiness
    _log.info("autorecovery_started", delay_s=config.audit.delay_s)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(auditor.run(), name="auditor")
            tasks.create_task(worker.run(), name="repair worker")
            tasks.create_task(keep_throttled(client.store, worker), name="throttle of repair")
            tasks.create_task(keep_reporting(client.store, worker), name="report of repair")
            if exposed is not None:
                tasks.create_task(repairing.keep_counting(), name="count of open repairs")
    finally:
        _log.info(
            "autorecovery_stopped",
            entries=worker.pace.entries,
            bytes=worker.pace.bytes,
            **{outcome.name.lower(): count for outcome, count in worker.outcomes.items()},
        )
