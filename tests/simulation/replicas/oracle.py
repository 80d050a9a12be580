"""What replicas and their clients did, and what must hold of it.

The state counts its effects, and a result is that count: so real time orders counts.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from dlog import RequestId
from tests.simulation.kernel.invariants import InvariantError

SAME_STATE = "replicas_have_the_same_state"
ONE_EFFECT = "requests_have_one_effect"
REFUSED = "refused_commands_never_appear"
KEPT = "acknowledged_commands_are_kept"
READS = "reads_are_linearizable"
NEEDED = "what_a_registered_replica_needs_stays"
INVARIANTS = {
    SAME_STATE: "replicas at the same offset have the same state",
    ONE_EFFECT: "each request has one effect and one result",
    REFUSED: "a command that was refused never appears",
    KEPT: "a command that was acknowledged stays",
    READS: "no read sees less than what was acknowledged, or read, before it began",
    NEEDED: "nothing is truncated that a registered replica has neither applied nor can restore",
}


@dataclass(slots=True)
class Client:
    """Submits one request after the other, each until it has an answer."""

    name: str
    number: int = 0
    began_at: int | None = None
    """The count that was acknowledged when its present request was submitted first."""
    asked_until: float = 0.0
    """When it asks elsewhere, if nothing was answered."""
    results: dict[int, int] = field(default_factory=dict)
    """By number."""


@dataclass(slots=True)
class ReplicaOracle:
    log: str
    note: Callable[[str, str], None]
    """Tells who did what."""
    states: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Count and checksum of the state, by the offset of the last command in it."""
    effects: dict[bytes, int] = field(default_factory=dict)
    """Where each command had its effect."""
    refused: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    acknowledged_count: int = 0
    """The largest that any client knows of."""
    known: list[tuple[float, int]] = field(default_factory=list)
    """Since when it was that, each time that it grew."""

    def know(self, count: int, now: float) -> None:
        if count > self.acknowledged_count:
            self.acknowledged_count = count
            self.known.append((now, count))

    def read_locally(self, who: str, count: int, complete_at: float) -> None:
        """*complete_at*: the state has all that was acknowledged until then, as it is said."""
        at = bisect_left(self.known, (complete_at, 0))
        if at and self.known[at - 1][1] > count:
            story = f"{who} read {count} as of {complete_at}, and {self.known[at - 1]} before"
            self._fail(READS, story)

    def applied(self, who: str, offset: int, payload: bytes, state: tuple[int, int]) -> None:
        self.note(who, f"applies {payload.decode()!r} at offset {offset}, as effect {state[0]}")
        known = self.states.setdefault(offset, state)
        if known != state:
            self._fail(SAME_STATE, f"{who} has {state} after offset {offset}, another {known}")
        place = self.effects.setdefault(payload, offset)
        if place != offset:
            self._fail(ONE_EFFECT, f"{payload!r} has effects at {place} and at {offset}")
        if payload in self.refused:
            self._fail(REFUSED, f"{payload!r} was refused, and is at {offset}")

    def restored(self, who: str, offset: int, state: tuple[int, int]) -> None:
        self.note(who, f"restored effect {state[0]} of a snapshot, before offset {offset}")
        below = max((each for each in self.states if each < offset), default=None)
        known = (0, 0) if below is None else self.states[below]
        if known != state:
            self._fail(SAME_STATE, f"{who} restored {state} at {offset}, another had {known}")

    def refuse(self, payload: bytes) -> None:
        if payload in self.effects:
            self._fail(REFUSED, f"{payload!r} was refused, and is at {self.effects[payload]}")
        self.refused.add(payload)

    def answered(
        self,
        client: Client,
        request: RequestId,
        payload: bytes,
        result: int,
        now: float,
        began_at: int = 0,
    ) -> None:
        """*began_at*: what was acknowledged before it was submitted first."""
        known = client.results.setdefault(request.number, result)
        if known != result:
            self._fail(ONE_EFFECT, f"{request} has the results {known} and {result}")
        self.acknowledge(payload, result, began_at, now)

    def acknowledge(self, payload: bytes, result: int, began_at: int, now: float) -> None:
        if payload not in self.effects:
            self._fail(KEPT, f"{payload!r} was acknowledged as {result}, and nobody applied it")
        count, _ = self.states[self.effects[payload]]
        if count != result:
            self._fail(ONE_EFFECT, f"{payload!r} was effect {count}, and its result is {result}")
        if result <= began_at:
            self._fail(READS, f"{payload!r} was submitted after {began_at}, and is {result}")
        self.acknowledged.add(payload)
        self.know(result, now)

    def read(self, who: str, count: int, began_at: int, now: float) -> None:
        self.note(who, f"reads effect {count}; {began_at} was acknowledged before it began")
        if count < began_at:
            self._fail(READS, f"{who} read {count}, and {began_at} was acknowledged before")
        self.know(count, now)

    def truncated(self, first: int, applied: dict[str, int], snapshots: dict[str, int]) -> None:
        """*first*: where the log begins now. *applied*: by each registered replica without a store;
        *snapshots*: offset of the newest whole one of each registered store."""
        for who, offset in (applied | snapshots).items():
            if offset < first:
                self._fail(NEEDED, f"the log begins at {first}, and {who} has all below {offset}")

    def _fail(self, invariant: str, story: str) -> None:
        raise InvariantError(invariant, self.log, story)
