"""The metrics of logs in this process: its writers, readers, standbys and janitor.

An application that has a registry of prometheus-client shows them with `register`; a program
of its own may serve them with `ledger.metering.serving.served`.
"""

from typing import TYPE_CHECKING, Final

import leader.metrics
import ledger.metrics
from ledger.metering.declaring import LONG_S, Declarations
from ledger.metering.exposing import Exposed

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

__all__ = ["expose", "register"]

METRICS: Final[Declarations[None]] = Declarations()

# The janitor.

JANITOR_PASS_S: Final = METRICS.spread(
    "dlog_janitor_pass_seconds", "How long each pass over all logs took.", LONG_S
)
JANITOR_FAILURES: Final = METRICS.tally(
    "dlog_janitor_failures_total", "Passes that did not come to their end."
)
JANITOR_TROUBLES: Final = METRICS.tally(
    "dlog_janitor_troubles_total", "Logs and ledgers that a pass could not look after."
)
JANITOR_TRIMMED_RECORDS: Final = METRICS.tally(
    "dlog_janitor_trimmed_records_total", "Records that retention removed."
)
JANITOR_DELETED_LEDGERS: Final = METRICS.tally(
    "dlog_janitor_deleted_ledgers_total", "Ledgers of segments that were trimmed."
)
JANITOR_DELETED_ORPHANS: Final = METRICS.tally(
    "dlog_janitor_deleted_orphans_total", "Ledgers that were of no use to any log, and are deleted."
)


def register(registry: "CollectorRegistry | None" = None) -> None:
    """Show the metrics of all logs, ledgers and elections of this process in *registry*, by default
    in that of the process. To be called once for each: the registry refuses a second time with
    `ValueError`."""
    from prometheus_client.registry import REGISTRY

    from ledger.metering.collecting import ExposedCollector

    exposed = Exposed()
    expose(exposed)
    (REGISTRY if registry is None else registry).register(ExposedCollector(exposed))


def expose(exposed: Exposed) -> None:
    """Let *exposed* show them."""
    for metrics in (METRICS, ledger.metrics.METRICS, leader.metrics.METRICS):
        exposed.add(metrics)
