"""The metrics of logs in this process: its writers, readers, standbys, replicas and janitor.

An application that has a registry of prometheus-client shows them with `register`; a program
of its own may serve them with `ledger.metering.http_server.served`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import add
from typing import TYPE_CHECKING, Final, Protocol

import leader.metrics
import ledger.metrics
from ledger.metering.declaration import (
    BYTES,
    COUNTS,
    LONG_S,
    SECONDS,
    Exposed,
    Live,
    MetricRegistry,
    bounded,
)

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

__all__ = ["expose", "register"]


class WriterCounts(Protocol):
    """Of one log."""

    log: str

    @property
    def pending_bytes(self) -> int: ...


class ReaderCounts(Protocol):
    """Of one log."""

    log: str

    def lag_s(self) -> float: ...


class ReplicaCounts(Protocol):
    """Of one state machine."""

    @property
    def role(self) -> str: ...


class ArchiverCounts(Protocol):
    """What an archiver knows of all logs since its last pass; None: it is not the one that works,
    or has made none."""

    @property
    def backlog_segments(self) -> int | None: ...
    @property
    def backlog_bytes(self) -> int | None: ...
    @property
    def stuck_s(self) -> float | None: ...
    @property
    def succeeded_s(self) -> float | None: ...


class Overseer(Protocol):
    """What a janitor saw of all logs in its last pass; None: it is not the one that works."""

    leaderless: int | None
    consumer_lags: Mapping[str, int] | None


METRICS: Final[MetricRegistry[None]] = MetricRegistry()

# Writers.

WRITERS: Final[Live[WriterCounts]] = Live()
"""Those that take appends."""
METRICS.gauge("dlog_writers", "Logs that this process writes.", lambda _: sum(1 for _ in WRITERS))
APPENDED_RECORDS: Final = METRICS.tally(
    "dlog_appended_records_total", "Records whose append was confirmed."
)
APPENDED_BYTES: Final = METRICS.tally(
    "dlog_appended_bytes_total", "Bytes of values, keys and headers of these records."
)
FAILED_RECORDS: Final = METRICS.tally(
    "dlog_failed_records_total",
    "Records whose append failed: certainly not in the log (refused), or with an unknown outcome "
    "(unknown).",
    "outcome",
    known=[("refused",), ("unknown",)],
)
APPEND_S: Final = METRICS.spread(
    "dlog_append_seconds",
    "Time of each batch from sending it to bookies to its confirmation.",
    SECONDS,
)
BATCH_RECORDS: Final = METRICS.spread(
    "dlog_append_batch_records", "Records of each batch that was sent.", COUNTS
)
BATCH_BYTES: Final = METRICS.spread(
    "dlog_append_batch_bytes", "Bytes of each batch that was sent, encoded.", BYTES
)
METRICS.gauge(
    "dlog_append_pending_bytes",
    "Bytes of records that await confirmation, including the overhead of each, by log.",
    lambda _: bounded(((each.log, each.pending_bytes) for each in WRITERS), add),
    "log",
)
ROLLS: Final = METRICS.tally(
    "dlog_rolls_total", "Segments that were sealed when their writer continued in another one."
)
WRITER_EVENTS: Final = METRICS.tally(
    "dlog_writer_events_total",
    "Events of writers: writer_reopens (an error was met), reopening_postponed, writer_reopened, "
    "writer_ended, roll_postponed, roll_failed, close_incomplete.",
    "event",
)

# Takeovers: a log that is opened for writing, or reopened by its writer after an error.

TAKEOVERS: Final = METRICS.tally(
    "dlog_takeovers_total",
    "Takeovers that ended, by their reason (open, reopen) and their outcome (done, failed).",
    "reason",
    "outcome",
    known=[(why, how) for why in ("open", "reopen") for how in ("done", "failed")],
)
TAKEOVER_S: Final = METRICS.spread(
    "dlog_takeover_seconds", "Duration of successful takeovers.", SECONDS
)
TAKEOVER_PART_S: Final = METRICS.tally(
    "dlog_takeover_part_seconds_total",
    "Time that takeovers spent, by part: read_manifest, recover_segment, create_ledger, "
    "write_manifest, check_leadership, delete_ledger.",
    "part",
)

# Readers.

READERS: Final[Live[ReaderCounts]] = Live()
METRICS.gauge(
    "dlog_readers", "Readers of logs that this process has open.", lambda _: sum(1 for _ in READERS)
)
READ_RECORDS: Final = METRICS.tally(
    "dlog_read_records_total", "Records that were delivered to applications."
)
READ_BYTES: Final = METRICS.tally("dlog_read_bytes_total", "Bytes of these records, as stored.")
METRICS.gauge(
    "dlog_read_lag_seconds",
    "Age of the batch that a reader delivers next, since its start, by log, of its slowest "
    "reader; 0 if it has delivered everything that is confirmed.",
    lambda _: bounded(((each.log, each.lag_s()) for each in READERS), max),
    "log",
)
READ_INTERRUPTIONS: Final = METRICS.tally(
    "dlog_read_interruptions_total", "Reads that met an error and were restarted."
)

# Standbys.

PROMOTIONS: Final = METRICS.tally("dlog_promotions_total", "Standbys that became leaders.")
PROMOTION_S: Final = METRICS.spread(
    "dlog_promotion_seconds",
    "Time from the election until the log was taken over and read to its end.",
    SECONDS,
)
LEADERSHIPS_LOST: Final = METRICS.tally(
    "dlog_leaderships_lost_total", "Leaders that lost their leadership without having resigned."
)

# Replicas of state machines.

REPLICAS: Final[Live[ReplicaCounts]] = Live()
METRICS.gauge(
    "dlog_replicas",
    "Replicas of state machines that this process has open, by role: standby, leader, stopped (by "
    "an error).",
    lambda _: Counter(each.role for each in REPLICAS),
    "role",
)
REPLICA_RECORDS: Final = METRICS.tally(
    "dlog_replica_applied_records_total", "Records that replicas applied: commands, marks, digests."
)
REPLICA_FORGOTTEN_CLIENTS: Final = METRICS.tally(
    "dlog_replica_forgotten_clients_total",
    "Clients whose results replicas had no room for any more, each forgotten by every replica: "
    "requests that they repeat are done again.",
)
REPLICA_FORWARDS: Final = METRICS.tally(
    "dlog_replica_forwards_total",
    "Attempts of replicas to have the leader do a command, by outcome: answered, refused (this "
    "attempt certainly has no effect), or lost (no reply; the command is sent again).",
    "outcome",
    known=[("answered",), ("refused",), ("lost",)],
)
REPLICA_SNAPSHOTS: Final = METRICS.tally(
    "dlog_replica_snapshots_total",
    "Snapshots of replicas: written, restored, or failed to be written.",
    "outcome",
    known=[("written",), ("restored",), ("failed",)],
)

REPLICA_SNAPSHOT_BYTES: Final = METRICS.tally(
    "dlog_replica_snapshot_bytes_total",
    "Bytes of snapshots of replicas, counted while work on them proceeds: writing, checking (read "
    "back or read before use), restoring.",
    "phase",
    known=[("writing",), ("checking",), ("restoring",)],
)

# The janitor.

JANITOR_PASS_S: Final = METRICS.spread(
    "dlog_janitor_pass_seconds", "Duration of each pass over all logs.", LONG_S
)
JANITOR_FAILURES: Final = METRICS.tally("dlog_janitor_failures_total", "Passes that failed.")
JANITOR_TROUBLES: Final = METRICS.tally(
    "dlog_janitor_troubles_total", "Logs and ledgers for which a pass met an error."
)
JANITOR_TRIMMED_RECORDS: Final = METRICS.tally(
    "dlog_janitor_trimmed_records_total", "Records that retention removed."
)
JANITOR_DELETED_LEDGERS: Final = METRICS.tally(
    "dlog_janitor_deleted_ledgers_total", "Ledgers of segments that were trimmed."
)
JANITOR_DELETED_ORPHANS: Final = METRICS.tally(
    "dlog_janitor_deleted_orphans_total",
    "Ledgers that were of no use to any log, and were deleted.",
)

# Object storage.

ARCHIVER_PASS_S: Final = METRICS.spread(
    "dlog_archiver_pass_seconds", "Duration of each pass over all logs with object storage.", LONG_S
)
ARCHIVER_TROUBLES: Final = METRICS.tally(
    "dlog_archiver_troubles_total", "Logs and segments for which a pass met an error."
)
ARCHIVED_SEGMENTS: Final = METRICS.tally(
    "dlog_archived_segments_total", "Segments that were copied to object storage."
)
RESTORED_SEGMENTS: Final = METRICS.tally(
    "dlog_restored_segments_total", "Archived segments that were brought back to bookies."
)
ARCHIVED_BYTES: Final = METRICS.tally(
    "dlog_archived_bytes_total", "Bytes of objects that segments were copied to."
)
TABLE_ROWS: Final = METRICS.tally(
    "dlog_table_rows_total", "Rows that were added to tables of logs in object storage."
)
RELEASED_SEGMENTS: Final = METRICS.tally(
    "dlog_released_segments_total",
    "Segments that left the bookies, as their objects were verified.",
)

ARCHIVERS: Final[Live[ArchiverCounts]] = Live()
METRICS.gauge(
    "dlog_archive_backlog_segments",
    "Segments that should be in object storage by now and are not; exported by the active "
    "archiver, as of its last pass.",
    lambda _: _together(each.backlog_segments for each in ARCHIVERS),
)
METRICS.gauge(
    "dlog_archive_backlog_bytes",
    "Payload bytes of these segments.",
    lambda _: _together(each.backlog_bytes for each in ARCHIVERS),
)
METRICS.gauge(
    "dlog_archive_stuck_seconds",
    "How long the active archiver has known the oldest of these segments, of the log that waits "
    "longest; 0: none waits.",
    lambda _: _longest(each.stuck_s for each in ARCHIVERS),
)
METRICS.gauge(
    "dlog_archiver_succeeded_seconds",
    "Time since the active archiver made a pass without an error, or began to work.",
    lambda _: _longest(each.succeeded_s for each in ARCHIVERS),
)

OVERSEERS: Final[Live[Overseer]] = Live()
METRICS.gauge(
    "dlog_leaderless_logs",
    "Logs that had leaders, have none, and were not closed in order; exported by the active "
    "janitor, as of its last pass.",
    lambda _: _together(each.leaderless for each in OVERSEERS),
)
METRICS.gauge(
    "dlog_consumer_lag_records",
    "Records of sealed segments that the slowest named consumer of a log has not processed, by "
    "log; exported by the active janitor, as of its last pass.",
    lambda _: bounded(
        (lag for each in OVERSEERS if each.consumer_lags for lag in each.consumer_lags.items()), max
    ),
    "log",
)


def register(registry: "CollectorRegistry | None" = None) -> None:
    """Show the metrics of all logs, ledgers and elections of this process in *registry*, by default
    in that of the process. To be called once for each: the registry refuses a second time with
    `ValueError`."""
    from prometheus_client.registry import REGISTRY

    from ledger.metering.collector import ExposedCollector

    exposed = Exposed()
    expose(exposed)
    (REGISTRY if registry is None else registry).register(ExposedCollector(exposed))


def expose(exposed: Exposed) -> None:
    """Let *exposed* show them."""
    for metrics in (METRICS, ledger.metrics.METRICS, leader.metrics.METRICS):
        exposed.add(metrics)


def _together(counts: Iterable[int | None]) -> int | None:
    found = [count for count in counts if count is not None]
    return sum(found) if found else None


def _longest(times_s: Iterable[float | None]) -> float | None:
    return max((time_s for time_s in times_s if time_s is not None), default=None)
