"""Histories of a replicated bank: what clients asked for, when, and what they were answered.

Each effect has a serial number in the state, and each answer tells it: so the order of all effects
is known, and `BankHistory.check` sees in one pass whether it is linearizable. Porcupine has a model
of its own (`checker/bank.go`), and judges the same history without this file.

Times are of one clock, in seconds.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

ACCOUNTS: Final = 8
_NS: Final = 1_000_000_000

Payload = dict[str, Any]
"""``{"op": "deposit", "to": 3, "amount": 5, "id": "client-1:7"}``; a transfer has "from", too."""


@dataclass(slots=True)
class BankState:
    serial: int = 0
    """How many commands had their effect."""
    balances: list[int] = field(default_factory=lambda: [0] * ACCOUNTS)
    anonymous: dict[str, int] = field(default_factory=dict)
    """The serial of each command that was submitted without a request id, by its own id."""

    def apply(self, payload: Payload) -> list[int]:
        """Return the serial, and the balance of "to", or whether there was enough money."""
        self.serial += 1
        amount, to = payload["amount"], payload["to"]
        if payload["op"] == "deposit":
            self.balances[to] += amount
            return [self.serial, self.balances[to]]
        enough = self.balances[payload["from"]] >= amount
        if enough:
            self.balances[payload["from"]] -= amount
            self.balances[to] += amount
        return [self.serial, int(enough)]


@dataclass(slots=True)
class Effect:
    """A command that was submitted; as a request, until it was answered."""

    client: str
    payload: Payload
    call: float
    returned: float | None = None
    result: list[int] | None = None
    refused: bool = False
    """Answered that it certainly has no effect."""


@dataclass(frozen=True, slots=True)
class Read:
    client: str
    call: float
    returned: float
    serial: int
    balances: list[int]
    sees: float
    """It has to see all that was answered to anybody before: if linearizable, before its call."""


@dataclass(slots=True)
class BankHistory:
    effects: list[Effect] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    """Linearizable ones."""
    local_reads: list[Read] = field(default_factory=list)
    acknowledged: int = 0
    """The largest serial that any client was told."""

    def check(self, end: BankState) -> list[str]:
        """Return what contradicts one order of all effects that ends with *end*."""
        broken: list[str] = []
        by_serial = self._by_serial(end, broken)
        states = self._replayed(by_serial, end, broken)
        answered = sorted(
            (effect.returned, effect.result[0])
            for effect in by_serial.values()
            if effect.result is not None and effect.returned is not None
        )
        answered += [(read.returned, read.serial) for read in self.reads]
        answered.sort()
        times = [time for time, _ in answered]
        most = list(accumulate((serial for _, serial in answered), max))

        def known_before(time: float) -> int:
            at = bisect_left(times, time)
            return most[at - 1] if at else 0

        for serial, effect in by_serial.items():
            if serial <= known_before(effect.call):
                broken.append(f"{effect} was called when {known_before(effect.call)} was known")
        for read in (*self.reads, *self.local_reads):
            if read.serial < known_before(read.sees):
                broken.append(f"{read} is stale: {known_before(read.sees)} was known")
            if read.serial >= len(states) or states[read.serial] != read.balances:
                broken.append(f"{read} is no state that there was")
            elif read.serial and by_serial[read.serial].call > read.returned:
                broken.append(f"{read} is of the future")
        return broken

    def _by_serial(self, end: BankState, broken: list[str]) -> dict[int, Effect]:
        by_serial: dict[int, Effect] = {}
        for effect in self.effects:
            unknown = effect.result is None
            serial = end.anonymous.get(effect.payload["id"]) if unknown else effect.result[0]  # type: ignore[index]
            if serial is None:
                continue
            if effect.refused:
                broken.append(f"{effect} was refused, and has an effect")
            if serial in by_serial:
                broken.append(f"{effect} and {by_serial[serial]} are one effect")
            by_serial[serial] = effect
        return by_serial

    def _replayed(
        self, by_serial: dict[int, Effect], end: BankState, broken: list[str]
    ) -> list[list[int]]:
        """Return the balances after each effect."""
        state, states = BankState(), [[0] * ACCOUNTS]
        deposited = 0
        for serial in range(1, end.serial + 1):
            effect = by_serial.get(serial)
            if effect is None:
                broken.append(f"nobody knows of effect {serial}: a request had more than one")
                return states
            result = state.apply(effect.payload)
            deposited += effect.payload["amount"] if effect.payload["op"] == "deposit" else 0
            if effect.result not in (None, result):
                broken.append(f"{effect} has to be {result}")
            if sum(state.balances) != deposited:
                broken.append(f"there is {sum(state.balances)} after {effect}, not {deposited}")
            states.append(list(state.balances))
        if max(by_serial, default=0) > end.serial or state.balances != end.balances:
            broken.append(f"the end is {end}, and not {state}")
        return states

    def lines(self, history: str, end: BankState) -> Iterator[str]:
        """Yield the history as the checker in Go reads it, but for local reads."""
        last = max((effect.returned or 0.0 for effect in self.effects), default=0.0) + 1
        for effect in self.effects:
            payload, result = effect.payload, effect.result
            serial = end.anonymous.get(payload["id"], 0) if result is None else result[0]
            if not serial:
                continue  # it has no effect that anybody could see
            values: list[object] = [payload.get("from", -1), payload["to"], payload["amount"]]
            values.append("" if result is None else result[1])
            returned = last if effect.returned is None else effect.returned
            yield _line(
                history, effect.client, payload["op"], effect.call, returned, values, serial
            )
        for read in self.reads:
            values = list(read.balances)
            yield _line(
                history, read.client, "balances", read.call, read.returned, values, read.serial
            )


def _line(
    history: str,
    client: str,
    op: str,
    call: float,
    returned: float,
    values: Sequence[object],
    serial: int,
) -> str:
    fields = {
        "history": history,
        "client": client,
        "op": op,
        "call": round(call * _NS),
        "return": round(returned * _NS),
        "values": [str(value) for value in values],
        "offset": serial,
    }
    return json.dumps(fields)
