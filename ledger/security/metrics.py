"""The metrics of what a process secures its connections with."""

from typing import Final

from ledger.metering.declaration import MetricRegistry
from ledger.security.certificates import Security

METRICS: Final[MetricRegistry[Security]] = MetricRegistry()


def _expires_at(security: Security) -> float:
    """Files count that nobody has connected with yet: who has renewed them looks here."""
    security.look()
    return security.certificate.expires_at


METRICS.gauge(
    "dlog_tls_certificate_expires_seconds",
    "Time at which the certificate of this process expires, in seconds since 1970.",
    _expires_at,
)
METRICS.counter(
    "dlog_tls_renewals_total",
    "How often renewed TLS files were loaded.",
    lambda security: security.generation,
)
METRICS.counter(
    "dlog_tls_unusable_renewals_total",
    "How often TLS files had changed and could not be used; the previous ones stay in use.",
    lambda security: security.failures,
)
