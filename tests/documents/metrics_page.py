"""Writes docs/metrics.md from what the packages declare: `make metrics`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import bookie.autorecovery.metrics
import bookie.metrics
import dlog.console.metrics
import dlog.kafka.metrics
import dlog.metrics
import leader.metrics
import ledger.metrics
import ledger.security.metrics
from ledger.metering.declaration import MetricRegistry

PAGE: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
DECLARED: Final[dict[str, MetricRegistry[Any]]] = {
    "A bookie": bookie.metrics.METRICS,
    "An autorecovery process": bookie.autorecovery.metrics.METRICS,
    "Logs: writers, readers, standbys, replicas, the janitor": dlog.metrics.METRICS,
    "Ledgers: writers, readers, recoveries": ledger.metrics.METRICS,
    "Elections": leader.metrics.METRICS,
    "A console": dlog.console.metrics.METRICS,
    "A gateway for Kafka's clients": dlog.kafka.metrics.METRICS,
    "Every process with TLS": ledger.security.metrics.METRICS,
}
"""All metrics, by the process that exports them."""

_BEGIN: Final = "<!-- From here on written by `make metrics`. -->\n"


def page() -> str:
    """Return the whole page: its head as it is, its tables regenerated."""
    head = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[0]
    return head + _BEGIN + "".join(map("{}\n".format, _lines()))


def _lines() -> Iterator[str]:
    for whose, metrics in DECLARED.items():
        yield from ("", f"## {whose}", "", "| metric | kind | labels | meaning |")
        yield "|---|---|---|---|"
        for each in metrics:
            labels = ", ".join(f"`{label}`" for label in each.labels)
            yield f"| `{each.name}` | {each.kind.value} | {labels} | {each.says} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
