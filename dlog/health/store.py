"""The metadata store. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dlog.health.signs import Gravity, Sign

SLOW_S: Final = 1.0
"""An answer that takes longer delays takeovers and ensemble changes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    uri: str
    instance: str = ""
    """Of the namespace; empty: there is none."""
    answered_s: float = 0.0
    """How long one look took."""
    trouble: str = ""
    """Why there was no answer."""

    def signs(self) -> Iterator[Sign]:
        if self.trouble:
            yield Sign(
                Gravity.GRAVE,
                "store-unreachable",
                f"the metadata store does not serve: {self.trouble}",
                "Writers go on as long as no bookie fails and no segment ends; no log can be "
                "opened. See whether its servers run and are reached from here.",
            )
        elif not self.instance:
            yield Sign(
                Gravity.WRONG,
                "no-namespace",
                f"there is no namespace at {self.uri}",
                "Check --uri and DLOG_URI, or make one there with 'dlog init'.",
            )
        elif self.answered_s > SLOW_S:
            yield Sign(
                Gravity.WRONG,
                "store-slow",
                f"the metadata store took {self.answered_s:.1f} s for an answer",
                "Takeovers and ensemble changes wait for it: look at the load and the disks of "
                "its servers.",
            )

    def summary(self) -> str:
        if self.trouble:
            return f"{self.uri} does not answer"
        return f"{self.uri} answers in {1000 * self.answered_s:.0f} ms"

    def unseen(self) -> Iterator[str]:
        return iter(())

    def shown(self) -> Mapping[str, object]:
        return {
            "uri": self.uri,
            "reachable": not self.trouble,
            "instance": self.instance,
            "answered_s": self.answered_s,
        }
