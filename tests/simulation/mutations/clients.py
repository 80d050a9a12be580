"""Bugs of the drivers around the machines, and of readers."""

from dataclasses import replace

from ledger.entry import encode_frame, parse_header, payload_of
from ledger.protocol.reading import Reading
from ledger.protocol.recovery import WriteBack
from tests.simulation.mutations.mutation import Patch, mutation
from tests.simulation.recovering import RecoveringClient


@mutation("rule 53")
def reader_delivers_above_the_lac(patch: Patch) -> None:
    def readable(self: Reading) -> int:
        return self._last if self.end is None else self.end

    patch.set(Reading, "readable", property(readable))


@mutation("rule 17")
def recovery_encodes_entries_again_with_its_own_lac(patch: Patch) -> None:
    honest = RecoveringClient._write_back

    def write_back(self: RecoveringClient, effect: WriteBack) -> None:
        for entry in range(effect.first, effect.last + 1):
            frame = self._frames.get(entry)
            if frame is not None:
                header = replace(parse_header(frame), last_add_confirmed=entry - 1)
                self._frames[entry] = encode_frame(
                    ledger_id=header.ledger_id,
                    entry_id=entry,
                    last_add_confirmed=header.last_add_confirmed,
                    length=header.length,
                    payload=bytes(payload_of(frame, header)),
                )
        honest(self, effect)

    patch.set(RecoveringClient, "_write_back", write_back)
