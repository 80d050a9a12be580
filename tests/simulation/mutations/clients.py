"""Bugs of the drivers around the machines, and of readers."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from bookie import frames
from bookie import storage as storage_module
from ledger.entry import (
    HEADER_BYTES,
    Digest,
    Header,
    encode_frame,
    parse_header,
    payload_of,
)
from ledger.protocol import answers
from ledger.protocol.reading import Reading
from ledger.protocol.recovery_events import WriteBack
from ledger.requests import ReadAnswer
from tests.simulation import recovering
from tests.simulation.bookie import SimBookie
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


@mutation("rules 74, 76")
def accepts_a_bookie_that_lost_its_disk(patch: Patch) -> None:
    def cookie_matches(_self: SimBookie) -> bool:
        return True

    patch.set(SimBookie, "_cookie_matches", cookie_matches)


@mutation("#4404, rule 87")
def stores_what_arrives_without_a_check(patch: Patch) -> None:
    honest = frames.check_frames

    def check_frames(
        ledger_id: int, entries: Sequence[int], lengths: Sequence[int], data: bytes | memoryview
    ) -> frames.Checked | frames.Bad:
        checked = honest(ledger_id, entries, lengths, data)
        if isinstance(checked, frames.Checked) or checked.index < 0:
            return checked
        starts = array("q", accumulate(lengths, initial=0))
        return frames.Checked(array("q", entries), starts, bytes(data), -1, 0)

    patch.set(storage_module, "check_frames", check_frames)


@mutation("rule 54")
def reader_does_not_verify_entries(patch: Patch) -> None:
    def verify_frame(frame: memoryview, ledger_id: int, entry_id: int) -> Header:
        return Header(Digest.CRC32C, len(frame) - HEADER_BYTES, ledger_id, entry_id, -1, 0, 0)

    patch.set(answers, "verify_frame", verify_frame)


@mutation("rule 54")
def takes_a_damaged_entry_for_absence(patch: Patch) -> None:
    honest = answers.verified

    def verified(answer: ReadAnswer, ledger_id: int, mac: bytes | None) -> answers.Found:
        found = honest(answer, ledger_id, mac)
        return replace(found, considered=answer.considered)

    patch.set(recovering, "verified", verified)
