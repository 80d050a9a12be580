"""A change that somebody is asked about: what it will do, in numbers, before it is made. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from dlog.console.wording import count
from dlog.protocol.consumer_state import ConsumerState

LOSSES_MAX: Final = 50
"""Consumers that are named."""

Consumers = Sequence[tuple[str, ConsumerState]]


@dataclass(frozen=True, slots=True)
class Field:
    """One line to be filled in before anything can be said."""

    name: str
    label: str
    value: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    consumer: str
    records: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    title: str
    button: str
    facts: Sequence[tuple[str, str]] = ()
    says: Sequence[str] = ()
    """Sentences: what follows from it."""
    losses: Sequence[Loss] = ()
    """Consumers that lose records which they have not processed, the worst first."""
    losses_left_out: int = 0
    fields: Sequence[Field] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    """What is sent with the confirmation: what was shown, and nothing newer."""
    ready: bool = True
    """False: the fields are to be filled in first, or there is nothing to be done."""

    def with_losses(self, consumers: Consumers, *, first: int, trim: int) -> Self:
        """Add what *consumers* lose of the records from *first* up to *trim*."""
        found = [
            (name, lost)
            for name, state in consumers
            if (lost := trim - max(first, state.position)) > 0
        ]
        found.sort(key=lambda each: -each[1])
        return replace(
            self,
            losses=[Loss(name, count(lost)) for name, lost in found[:LOSSES_MAX]],
            losses_left_out=max(0, len(found) - LOSSES_MAX),
        )
