"""Bugs of a writer and of its rolls: what it acknowledges, and where a segment ends."""

from dataclasses import replace

from dlog.aio.write import segment_roll, writer
from dlog.errors import LostOwnership
from dlog.manifest import Manifest, Sealed
from dlog.protocol import lifecycle, roll
from dlog.protocol.edits import Edit, check_incarnation, check_writable
from dlog.protocol.log_writer import LogWriterPhase, Writing
from dlog.protocol.log_writer_events import Confirm, SendEntries, WritingEffect
from dlog.protocol.packer import Packer
from ledger.ids import LedgerId
from ledger.protocol.procedure import Steps
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("seeds", logs=True)
def switches_before_the_old_ledger_is_confirmed(patch: Patch) -> None:
    honest = Writing._step_roll

    def step_roll(self: Writing, event: roll.RollEvent, now: float) -> list[WritingEffect]:
        effects = honest(self, event, now)
        if self.phase is LogWriterPhase.HOLDING:
            packer, self._packer = self._packer, Packer()  # where nothing is in flight
            effects += honest(self, roll.AddsConfirmed(), now)
            self._packer = packer
            effects += self._send()
        return effects

    patch.set(Writing, "_step_roll", step_roll)


@mutation("", logs=True)
def acknowledges_what_it_has_only_sent(patch: Patch) -> None:
    honest = Writing._send

    def send(self: Writing) -> list[WritingEffect]:
        offset, entry = self._sent_offset, self._confirmed_entry + self._packer.in_flight
        effects = honest(self)
        for batch in [g for s in effects if isinstance(s, SendEntries) for g in s.batches]:
            entry += 1
            effects.append(Confirm(batch, offset, self.segment, entry))
            offset += batch.count
        return effects

    patch.set(Writing, "_send", send)


@mutation("", logs=True)
def calls_refused_what_it_has_sent(patch: Patch) -> None:
    def outcome_unknown(log: str, _offset: int, reason: str) -> LostOwnership:
        return LostOwnership(log, reason)

    patch.set(writer, "AppendOutcomeUnknown", outcome_unknown)


@mutation("", logs=True)
def uses_the_number_of_an_empty_segment_again(patch: Patch) -> None:
    honest = Manifest.with_segment

    def with_segment(self: Manifest, number: int, ledger_id: LedgerId, created_ms: int) -> Manifest:
        last = self.last
        if last is not None and last.sealed is not None and last.sealed.records == 0:
            again = replace(last, ledger_id=ledger_id, created_ms=created_ms, sealed=None)
            return replace(
                self,
                segments=(*self.segments[:-1], again),
                deleting=(*self.deleting, last.ledger_id),
                next_segment=max(self.next_segment, number + 1),
            )
        return honest(self, number, ledger_id, created_ms)

    patch.set(Manifest, "with_segment", with_segment)


@mutation(
    "own bug",
    logs=True,
    test="tests/dlog/aio/test_closing.py"
    "::test_who_closes_a_log_in_the_middle_of_a_roll_seals_no_segment_of_who_took_it_over",
)
def seals_by_the_number_alone(patch: Patch) -> None:
    """A writer that closed in the middle of a roll sealed the segment of who took it over."""

    def seal_segment(
        log: str, number: int, _ledger_id: LedgerId, sealed: Sealed, *, now_ms: int
    ) -> Edit:
        def edit(manifest: Manifest) -> Manifest:
            segment = manifest.find(number)
            if segment is None or segment.sealed is not None:
                return manifest
            if any(s.sealed is None and s.number < number for s in manifest.segments):
                raise LostOwnership(log)
            manifest = manifest.with_sealed(number, sealed)
            return manifest.trimmed(manifest.retained_from(now_ms))

        return edit

    patch.set(writer, "seal_segment", seal_segment)
    patch.set(segment_roll, "seal_segment", seal_segment)


@mutation("", logs=True)
def lists_its_segment_behind_whoever_took_the_log(patch: Patch) -> None:
    """A writer that rolls while it is taken over goes on in its next segment."""

    def add_segment(
        log: str,
        *,
        incarnation: str,
        own_segment: int,
        number: int,
        ledger_id: LedgerId,
        now_ms: int,
    ) -> Edit:
        assert own_segment < number

        def edit(manifest: Manifest) -> Manifest:
            check_incarnation(manifest, log, incarnation)
            check_writable(manifest, log)
            last = manifest.last
            if last is not None and last.ledger_id == ledger_id:
                return manifest
            return manifest.with_segment(manifest.next_segment, ledger_id, now_ms)

        return edit

    patch.set(segment_roll, "add_segment", add_segment)


@mutation(
    "",
    logs=True,
    test="tests/dlog/protocol/test_interrupted_procedures.py"
    "::test_a_seal_that_stops_anywhere_is_a_seal_or_none",
)
def seals_a_log_beside_its_writer(patch: Patch) -> None:
    """The manifest says that the log has ended, and nobody is fenced."""

    def ends(_: Manifest) -> Steps[dict[int, Sealed]]:
        yield from ()
        return {}

    def end_log(log: str, *, incarnation: str, ends: dict[int, Sealed]) -> Edit:
        assert not ends

        def edit(manifest: Manifest) -> Manifest:
            check_incarnation(manifest, log, incarnation)
            return manifest if manifest.dropped else replace(manifest, sealed=True)

        return edit

    patch.set(lifecycle, "_ends", ends)
    patch.set(lifecycle, "end_log", end_log)
