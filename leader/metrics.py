"""The metrics of elections in this process."""

from typing import Final

from ledger.metering.declaration import LONG_S, Live, MetricRegistry

METRICS: Final[MetricRegistry[None]] = MetricRegistry()

HELD: Final[Live[object]] = Live()
"""Terms that are not over."""
CAMPAIGNS: Final = METRICS.tally("dlog_leader_campaigns_total", "Campaigns that were started.")
TERMS: Final = METRICS.tally("dlog_leader_terms_total", "Elections that were won.")
ELECTION_S: Final = METRICS.spread(
    "dlog_leader_election_seconds", "Duration of campaigns that were won.", LONG_S
)
TERMS_OVER: Final = METRICS.tally(
    "dlog_leader_terms_over_total",
    "Terms that ended, by reason: resigned, session_lost, lease_expired, node_gone, other.",
    "reason",
)
DIED: Final = METRICS.tally(
    "dlog_leader_deaths_seen_total",
    "Leaders and preceding candidates whose lifeline was seen to end: they died, or withdrew.",
)
METRICS.gauge(
    "dlog_leader_terms",
    "Terms that this process holds now, for logs, as auditor or as janitor.",
    lambda _: sum(1 for _ in HELD),
)

REASONS: Final = frozenset({"resigned", "session_lost", "lease_expired", "node_gone"})
"""Of ends of terms; others are put together."""
