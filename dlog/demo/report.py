"""The report of the demo, and how it is printed."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True)
class DemoTakeover:
    """The way from the kill of the leader to the successor's first acknowledged append."""

    election_s: float
    """Until the metadata store let the dead leader go and the standby knew."""
    opening_s: float
    """Fencing and recovering the last segment, and opening the next one."""
    first_append_s: float

    @property
    def total_ms(self) -> int:
        return round((self.election_s + self.opening_s + self.first_append_s) * 1000)


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """Everything the table shows. `exact` iff the demo has proven what it set out to prove."""

    source: int
    log: Mapping[str, int]
    parquet: Mapping[str, int]
    standby_exact: bool
    takeover: DemoTakeover
    append_rate: float
    spark_rate: float

    @property
    def exact(self) -> bool:
        copies = (self.log, self.parquet)
        return self.standby_exact and all(
            copy["records"] == self.source
            and not any(count for what, count in copy.items() if what != "records")
            for copy in copies
        )


def table(outcome: DemoOutcome) -> Table:
    """The outcome as a table for people."""
    shown = Table(title="source, log and Parquet, compared record by record")
    for header in ("", "log", "Parquet"):
        shown.add_column(header, justify="right" if header else "left")
    for what in outcome.log:
        row = (f"{outcome.log[what]:,}", f"{outcome.parquet[what]:,}")
        shown.add_row(what.replace("_", " "), *row)
    shown.add_section()
    parts = outcome.takeover
    shown.add_row("takeover", f"{parts.total_ms} ms", "")
    shown.add_row("  detection and election", f"{parts.election_s * 1000:.0f} ms", "")
    shown.add_row("  fencing, recovery, open", f"{parts.opening_s * 1000:.0f} ms", "")
    shown.add_row("  first append", f"{parts.first_append_s * 1000:.0f} ms", "")
    shown.add_section()
    shown.add_row("append rate", f"{outcome.append_rate:,.0f}/s", "")
    shown.add_row("Spark rate", "", f"{outcome.spark_rate:,.0f}/s")
    return shown


def last_line(outcome: DemoOutcome) -> str:
    """The outcome as one line for programs."""
    lost = max(outcome.log["lost"], outcome.parquet["lost"])
    doubled = max(outcome.log["doubled"], outcome.parquet["doubled"])
    return (
        f"demo: {outcome.log['records']} records, {lost} lost, {doubled} doubled, "
        f"takeover {outcome.takeover.total_ms} ms"
    )
