"""Histories of one log as the checker reads them: who asked for what, when, and what was answered.

A history holds every append that may have had an effect, every takeover that succeeded, and what
observers were told: where the log ends, and all of its records. Times are whole numbers of one
clock: twice the step of a simulation, nanoseconds of one machine. An operation whose call and
return have the same time as another's is concurrent to it.

What the checker holds against it is in `checker/model.go`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from tests.simulation.logs.oracle import Append, Fate, LogHistory

UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    client: str
    op: str
    """append, takeover, end or read"""
    call: int
    returned: int | None
    """None: without an answer, or with the answer that the outcome is unknown."""
    values: tuple[str, ...] = ()
    offset: int = UNKNOWN
    """Of the first value; of a takeover or an end: how many records the log has."""
    expected: int = UNKNOWN
    """The offset that an append is meant for, if any."""
    epoch: int = 0
    certain: bool = True
    """Whether a read is said to be whole: `Log.tail` without `follow` may go on without certainty,
    after `END_GRACE_S`."""

    def line(self, history: str) -> str:
        fields = asdict(self)
        return json.dumps({"history": history, "return": fields.pop("returned"), **fields})


def append(
    client: str,
    call: int,
    returned: int | None,
    values: Sequence[str],
    *,
    epoch: int,
    offset: int = UNKNOWN,
    expected: int | None = None,
) -> Operation:
    return Operation(
        client=client,
        op="append",
        call=call,
        returned=returned,
        values=tuple(values),
        offset=offset,
        expected=UNKNOWN if expected is None else expected,
        epoch=epoch,
    )


def takeover(client: str, call: int, returned: int, *, epoch: int, offset: int) -> Operation:
    return Operation(
        client=client, op="takeover", call=call, returned=returned, epoch=epoch, offset=offset
    )


def end(client: str, call: int, returned: int, offset: int) -> Operation:
    return Operation(client=client, op="end", call=call, returned=returned, offset=offset)


def read(
    client: str, call: int, returned: int, values: Sequence[str], *, certain: bool = True
) -> Operation:
    return Operation(
        client=client,
        op="read",
        call=call,
        returned=returned,
        values=tuple(values),
        certain=certain,
    )


def of_simulation(log: LogHistory) -> Iterator[Operation]:
    """Yield what leaders of a simulated log did; each step has room for a call and a return."""
    for opened in log.opens:
        yield takeover(
            opened.who,
            call_in(opened.asked),
            return_in(opened.step),
            epoch=opened.epoch,
            offset=opened.next_offset,
        )
    for submitted in log.appends.values():
        group = submitted.group or (submitted.payload,)
        if submitted.payload == group[0] and submitted.fate is not Fate.REFUSED:
            yield _append_of(submitted, group)


def _append_of(submitted: Append, group: Sequence[bytes]) -> Operation:
    operation = append(
        submitted.who,
        call_in(submitted.submitted),
        None,
        [name_of(payload) for payload in group],
        epoch=submitted.epoch,
        offset=submitted.offset,
        expected=submitted.expected,
    )
    if submitted.fate is Fate.ACKNOWLEDGED:
        return replace(operation, returned=return_in(submitted.resolved))
    return operation


def name_of(payload: bytes) -> str:
    """Return a record without what only makes it longer."""
    return payload.split(maxsplit=1)[0].decode()


def call_in(step: int) -> int:
    return 2 * step


def return_in(step: int) -> int:
    return 2 * step + 1
