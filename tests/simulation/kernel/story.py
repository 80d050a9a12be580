"""Tells a failing run as a person does: the world, what each actor did, what broke and when."""

import re
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from itertools import groupby
from typing import Final

from tests.simulation.kernel.changes import KEPT, WORLDS_WITHIN
from tests.simulation.kernel.shrinking import Failure

EVENTS_MAX: Final = 80
"""The last so many lines are told; of the others, how many they are."""
WIDTH: Final = 100
_RANGE: Final = re.compile(r"\b(\d+)\.\.\1\b")
_PADDING: Final = re.compile(r"\.{3,}")
"""Of payloads."""
_EVENT: Final = re.compile(r"^(?P<at>\d+\.\d+) (?P<who>foreign \S+|\S+) (?P<what>.*)$", re.DOTALL)
WORLD: Final = "world"


def tell(failure: Failure) -> str:
    """Return the story of *failure*."""
    return "\n".join(_told(failure))


def _told(failure: Failure) -> Iterator[str]:
    error = failure.error
    yield f"The story of seed {error.seed}, of {failure.workload.name}" + (
        f", the smallest of {failure.tries} runs that were tried" if failure.tries else ""
    )
    if failure.profile is not None:
        world = _world(failure.profile, failure.workload.of_no_effect)
        yield from _wrapped(f"The world: {', '.join(world)}")
    lines = [line for event in failure.events if (line := _line(event)) is not None]
    lines = [f"{line}{_times(len(list(same)))}" for line, same in groupby(lines)]
    if len(lines) > EVENTS_MAX:
        yield f"    ... {len(lines) - EVENTS_MAX} events before these ..."
    yield from lines[-EVENTS_MAX:]
    yield f"At {error.seconds:.3f} s, in step {error.step}, this breaks:"
    yield from _wrapped(error.broken)
    meaning = failure.workload.invariants.get(error.kind)
    if meaning is not None:
        yield from _wrapped(f"{error.kind} says: {meaning}")
    yield f"  reproduce: {failure.workload.command(error.seed, failure.changes)}"


def _line(event: str) -> str | None:
    """Return what an event of the trace says, with single entries instead of ranges of one."""
    parts = _EVENT.match(event)
    if parts is None or (parts["who"] == WORLD and "(" in parts["what"]):
        return None  # the world, which is told by itself
    what = _PADDING.sub("..", _RANGE.sub(r"\1", parts["what"]))
    return f"  {float(parts['at']):11.3f} s  {parts['who']:14} {what}"


def _world(profile: object, but: Collection[str], path: str = "") -> Iterator[str]:
    """Yield what is not off in a world."""
    assert is_dataclass(profile)
    for each in fields(profile):
        value, key = getattr(profile, each.name), f"{path}{each.name}"
        if key in but:
            continue
        if isinstance(value, bool):
            if value:
                yield each.name.replace("_", " ")
        elif isinstance(value, int | float | str):
            if value and each.name not in KEPT:
                yield f"{each.name.replace('_', ' ')} {value}"
        elif each.name == "quorum":
            yield f"quorum {value.ensemble}/{value.write}/{value.ack}"
        elif each.name in WORLDS_WITHIN:
            yield from _world(value, but, f"{key}.")


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
