"""Which run may write one log: what the keeper decides, without any I/O.

A *run* is one start of a query, or one batch write. Whoever opens the log elsewhere fences the
sink that is open here; then the run that had it must fail, and must not take the log back in
silence, while a run that is started later may. Two facts make that more than a flag:

    1. At a claim, before a streaming batch, Spark does not say which run asks. So once a run has
       lost the log, claims take nothing over until it was told, of which it dies: they are lent
       what tasks need to begin, and the commit, which has the run, decides.
    2. The keeper may be killed, and close what is idle. It goes on within its *tenure*, the
       incarnation and epoch that it had, or not at all: if the log has another epoch by then,
       the run lost it.

Within one application no fencing is needed: the run that commits last has the log, and those
before are deposed. What is here is kept in a file, so a keeper knows what its predecessor did.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from dlog.errors import LostOwnership

DEPOSED_MAX: Final = 32
"""Runs of a log that are remembered as deposed; whoever was so long ago has failed since."""


@dataclass(frozen=True, slots=True)
class RunTenure:
    """The reign in which the log is, or was last, open here."""

    incarnation: str
    epoch: int


@dataclass(slots=True)
class Ownership:
    run: str | None = None
    """Who has the log; None: nobody did since its last run ended, or lost it."""
    tenure: RunTenure | None = None
    deposed: dict[str, str] = field(default_factory=dict)
    """Why a run must not write the log any more; the latest ones, in order."""
    unaware: set[str] = field(default_factory=set)
    """Those of them that were not told, and may still claim."""

    def admit(self, log: str, run: str) -> None:
        """Raise `LostOwnership` if *run* has lost the log: now it is told."""
        if run in self.deposed:
            self.told(run)
            raise LostOwnership(log, self.deposed[run])

    def may_take_over(self, run: str | None) -> bool:
        """Return whether the log may be taken from whoever has it: for *run*, which was admitted,
        or for whoever asks (None)."""
        if run is None:
            return self.run is None and not self.unaware
        return run != self.run

    def opened(self, tenure: RunTenure) -> None:
        """The log is open here."""
        self.tenure = tenure

    def used(self, run: str) -> None:
        """*run*, which was admitted, writes the log."""
        if self.run not in (None, run):
            self._depose(self.run, f"run {run} of the same Spark application took it over")
        self.run = run

    def lost(self, reason: str) -> None:
        """Somebody else has the log, or it is gone."""
        self._depose(self.run, reason)
        self.run, self.tenure = None, None

    def told(self, run: str) -> None:
        """*run* knows that it was deposed: it dies of that, and claims nothing more."""
        self.unaware.discard(run)

    def finished(self, run: str) -> None:
        """*run* will write nothing more; if others take the log now, nobody loses it."""
        self.told(run)
        if self.run == run:
            self.run = None

    def _depose(self, run: str | None, reason: str) -> None:
        if run is None:
            return
        self.deposed.pop(run, None)
        self.deposed[run] = reason
        self.unaware.add(run)
        while len(self.deposed) > DEPOSED_MAX:
            forgotten = next(iter(self.deposed))
            del self.deposed[forgotten]
            self.told(forgotten)

    def to_facts(self) -> dict[str, object]:
        """Return what `from_facts` takes, fit for JSON."""
        tenure = None if self.tenure is None else asdict(self.tenure)
        return {
            "run": self.run,
            "tenure": tenure,
            "deposed": dict(self.deposed),
            "unaware": sorted(self.unaware),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, object]) -> Self:
        """Raises ValueError for what `to_facts` did not make."""
        match facts:
            case {
                "run": str() | None as run,
                "tenure": tenure,
                "deposed": dict() as deposed,
                "unaware": list() as unaware,
            } if all(isinstance(each, str) for each in unaware):
                return cls(run, _tenure(tenure), dict(deposed), set(unaware))
            case _:
                raise ValueError(f"not the owners of a log: {facts!r}")


def _tenure(facts: object) -> RunTenure | None:
    match facts:
        case None:
            return None
        case {"incarnation": str() as incarnation, "epoch": int() as epoch}:
            return RunTenure(incarnation, epoch)
        case _:
            raise ValueError(f"not a tenure: {facts!r}")
