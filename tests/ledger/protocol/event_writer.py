"""The machine of a ledger's writer with its methods as events, too: a simulator queues them, and a
story names them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ledger.protocol.writer import Writer
from ledger.protocol.writer_events import WriterEffect, WriterEvent


@dataclass(frozen=True, slots=True)
class AppendRequested:
    """`Writer.append`."""

    count: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class AddsStored:
    """`Writer.stored`."""

    index: int
    generation: int
    first: int
    last: int


Event = WriterEvent | AppendRequested | AddsStored


class EventWriter(Writer):
    def step(self, event: Event, *, now: float) -> list[WriterEffect]:
        effects: Sequence[WriterEffect]
        match event:
            case AppendRequested():
                effects = self.append(event.count, event.payload_bytes, now)
            case AddsStored(index, generation, first, last):
                effects = self.stored(index, generation, first, last, now)
            case _:
                effects = super().step(event, now=now)
        return list(effects)
