"""One process of repair: it stands for election as auditor, and works on what is marked."""

import asyncio
from dataclasses import dataclass, field

from bookie.autorecovery.auditor import Auditor
from bookie.autorecovery.protocol.auditing import AuditConfig
from bookie.autorecovery.throttling import keep_reporting, keep_throttled
from bookie.autorecovery.worker import Worker, WorkerConfig
from ledger.client import LedgerClient
from ledger.log_events import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutorecoveryConfig:
    audit: AuditConfig = field(default_factory=AuditConfig)
    work: WorkerConfig = field(default_factory=WorkerConfig)


async def run_autorecovery(client: LedgerClient, config: AutorecoveryConfig) -> None:
    """Run until cancelled; what is under way is safe to leave. Raises what is a fault of ours."""
    worker = Worker(client, config.work)
    _log.info("autorecovery_started", delay_s=config.audit.delay_s)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Auditor(client, config.audit).run(), name="auditor")
            tasks.create_task(worker.run(), name="repair worker")
            tasks.create_task(keep_throttled(client.store, worker), name="throttle of repair")
            tasks.create_task(keep_reporting(client.store, worker), name="report of repair")
    finally:
        _log.info(
            "autorecovery_stopped",
            entries=worker.pace.entries,
            bytes=worker.pace.bytes,
            **{outcome.name.lower(): count for outcome, count in worker.outcomes.items()},
        )
