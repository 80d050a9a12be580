"""The metadata store. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dlog.health.findings import Finding, Severity
from ledger.feature_level import LEVEL_MAX, LEVELS, ClusterLevel

SLOW_S: Final = 1.0
"""An answer that takes longer delays takeovers and ensemble changes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    uri: str
    instance: str = ""
    """Of the namespace; empty: there is none."""
    answered_s: float = 0.0
    """Duration of one read."""
    held: ClusterLevel = field(default_factory=lambda: ClusterLevel(LEVEL_MAX))
    """The level of the cluster."""
    trouble: str = ""
    """Why there was no answer."""

    def findings(self) -> Iterator[Finding]:
        if self.trouble:
            yield Finding(
                Severity.CRITICAL,
                "store-unreachable",
                f"the metadata store does not serve: {self.trouble}",
                "Writers continue as long as no bookie fails and no segment ends; no log can be "
                "opened. Check that its servers run and can be reached from here.",
            )
        elif not self.instance:
            yield Finding(
                Severity.WARNING,
                "no-namespace",
                f"there is no namespace at {self.uri}",
                "Check --uri and DLOG_URI, or create one there with 'dlog init'.",
            )
        elif self.answered_s > SLOW_S:
            yield Finding(
                Severity.WARNING,
                "store-slow",
                f"the metadata store took {self.answered_s:.1f} s to answer",
                "Takeovers and ensemble changes wait for it: check the load and the disks of its "
                "servers.",
            )

        if self.instance and self.held.raising_to:
            yield Finding(
                Severity.WARNING,
                "level-unfinished",
                f"raising the cluster's level to {self.held.raising_to} was started but not "
                "finished: bookies of older releases cannot start",
                "'dlog cluster upgrade' finishes it, or reverts it and reports why.",
            )
        elif self.instance and self.held.level < LEVEL_MAX:
            yield Finding(
                Severity.NOTE,
                "level-low",
                f"the cluster is at level {self.held.level}, and this release knows "
                f"{LEVEL_MAX} ({LEVELS[LEVEL_MAX].brings})",
                "Once readers, writers and bookies are upgraded: 'dlog cluster upgrade'.",
            )

    def summary(self) -> str:
        if self.trouble:
            return f"{self.uri} does not answer"
        level = f", level {self.held.level}" if self.instance else ""
        return f"{self.uri} answers in {1000 * self.answered_s:.0f} ms{level}"

    def unseen(self) -> Iterator[str]:
        return iter(())

    def to_dict(self) -> Mapping[str, object]:
        return {
            "uri": self.uri,
            "reachable": not self.trouble,
            "instance": self.instance,
            "answered_s": self.answered_s,
            "level": self.held.level if self.instance else None,
        }
