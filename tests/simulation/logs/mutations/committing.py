"""Bugs of sinks: a unit twice, a unit in parts, a unit that is told and is not there."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from dlog.aio.port import Ledgers
from dlog.aio.read.segments import seal_of
from dlog.aio.write import segment_roll, sink, takeover_driver
from dlog.aio.write import writer as writing_driver
from dlog.aio.write.sink import Sink, Stager
from dlog.encoded_batch import placed
from dlog.errors import LostOwnership
from dlog.manifest import Manifest, Sealed
from dlog.protocol import log_writer, orphans, unit_commit
from dlog.protocol.edits import Edit, Staged, adopt, check_incarnation, check_writable
from dlog.protocol.log_writer_events import SendEntries, WritingEffect
from dlog.protocol.manifest_steps import ManifestSteps
from dlog.protocol.orphans import OrphanKind, StagedFor, Stamp
from dlog.protocol.unit_commit import AppendUnit, Committed, Tenure, Unit
from dlog.receipts import Receipt, Receipts
from dlog.recordbatch import decode_batch
from ledger.ids import LedgerId
from ledger.protocol.procedure import Steps
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("", logs=True)
def seals_a_segment_without_its_receipt(patch: Patch) -> None:
    honest = Manifest.with_sealed

    def with_sealed(self: Manifest, number: int, sealed: Sealed) -> Manifest:
        return honest(self, number, replace(sealed, receipt=None))

    patch.set(Manifest, "with_sealed", with_sealed)


_SINK: Final = "tests/dlog/aio/test_sink.py::test_"


# Drawn about once in 300 seeds.
@mutation(
    "",
    logs=True,
    drawn=False,
    test=_SINK + "the_receipt_of_a_sink_that_crashed_is_found_by_whoever_opens_the_log",
)
def takes_the_receipt_of_the_first_entry(patch: Patch) -> None:
    async def seal_by_first(
        ledgers: Ledgers, log: str, ledger_id: LedgerId, *, last_txid: int, created_ms: int
    ) -> Sealed:
        sealed = await seal_of(ledgers, log, ledger_id, last_txid=last_txid, created_ms=created_ms)
        if sealed.last_entry < 0:
            return sealed
        reader = await ledgers.open_no_recovery(ledger_id)
        first = decode_batch((await reader.read(0, 0))[0].payload)
        await reader.close()
        return replace(sealed, receipt=first.receipt)

    for module in (takeover_driver, segment_roll, writing_driver):
        patch.set(module, "seal_of", seal_by_first)


def _adopting(patch: Patch, change: Callable[..., Edit]) -> None:
    patch.set(unit_commit, "adopt", change)


@mutation("", logs=True)
def adopts_a_unit_that_is_there_already(patch: Patch) -> None:
    """A lost reply of the swap, or a unit that comes again, and its ledgers are listed anew."""

    def adopt_anyway(log: str, *, receipt: Receipt, **named: object) -> Edit:
        def edit(manifest: Manifest) -> Manifest:
            known = manifest.receipts
            forgotten = replace(manifest, receipts=Receipts())
            changed = adopt(log, receipt=receipt, **named)(forgotten)  # type: ignore[arg-type]
            if changed == forgotten:
                return manifest
            return replace(changed, receipts=known.with_one(receipt))

        return edit

    _adopting(patch, adopt_anyway)
    patch.set(Tenure, "learn", _learn_nothing)


def _learn_nothing(self: Tenure, manifest: Manifest, *, writing: bool) -> None:
    self.end_offset, self.last_txid = manifest.sealed_end, manifest.sealed_last_txid
    self.writing, self.origin, self.in_doubt = writing, None, False


# What is in the log twice by it is hidden by the receipts, mostly.
@mutation(
    "",
    logs=True,
    drawn=False,
    test=_SINK + "whoever_opens_the_log_later_ends_the_sink_which_says_who_has_it",
)
def adopts_in_any_epoch(patch: Patch) -> None:
    """A sink that was deposed adds its ledgers to the log of another one."""

    def adopt_late(log: str, *, epoch: int, staged: Sequence[Staged], **named: object) -> Edit:
        def edit(manifest: Manifest) -> Manifest:
            now = [replace(each, epoch=manifest.epoch) for each in staged]
            return adopt(log, epoch=manifest.epoch, staged=now, **named)(manifest)  # type: ignore[arg-type]

        return edit

    _adopting(patch, adopt_late)


@mutation("", logs=True)
def adopts_one_ledger_after_the_other(patch: Patch) -> None:
    honest = unit_commit._adopt

    def one_by_one(
        node: ManifestSteps, tenure: Tenure, unit: Unit, now_ms: int
    ) -> Steps[Committed]:
        receipt, first = unit.receipt, None
        for number, part in enumerate(unit.parts):
            last = number == len(unit.parts) - 1
            origin = receipt.origin if last else bytes([number + 200]) * 16
            one = replace(unit, receipt=Receipt(origin, receipt.number), parts=(part,))
            done = yield from honest(node, tenure, one, now_ms)
            first = done if first is None else first
        assert first is not None
        return first

    patch.set(unit_commit, "_adopt", one_by_one)


@mutation("", logs=True)
def sends_an_entry_again_whose_outcome_is_unknown(patch: Patch) -> None:
    """Without looking whether it is in the log: as if nobody knew receipts but the manifest's."""
    honest = Tenure.learn

    def learn(self: Tenure, manifest: Manifest, *, writing: bool) -> None:
        known = self.receipts
        honest(self, manifest, writing=writing)
        self.receipts = known

    patch.set(Tenure, "learn", learn)


@mutation("", logs=True)
def notes_a_unit_before_it_is_confirmed(patch: Patch) -> None:
    honest = unit_commit._append

    def append(node: ManifestSteps, tenure: Tenure, unit: Unit) -> Steps[Committed]:
        steps = honest(node, tenure, unit)
        try:
            action = next(steps)
            while True:
                if isinstance(action, AppendUnit):
                    tenure.receipts = tenure.receipts.with_one(unit.receipt)
                    tenure.in_doubt = False
                try:
                    answer = yield action
                except Exception as error:  # noqa: BLE001 - passed on
                    action = steps.throw(error)
                else:
                    action = steps.send(answer)
        except StopIteration as end:
            done = end.value
            assert isinstance(done, Committed)
            return done

    patch.set(unit_commit, "_append", append)


@mutation("", logs=True)
def forgets_the_other_origins(patch: Patch) -> None:
    def with_one(self: Receipts, receipt: Receipt | None) -> Receipts:
        return self if receipt is None or self.has(receipt) else Receipts((receipt,))

    patch.set(Receipts, "with_one", with_one)


@mutation(
    "",
    logs=True,
    test=_SINK + "a_unit_before_the_last_one_is_an_error_and_never_dropped_in_silence",
)
def drops_units_before_the_last_one(patch: Patch) -> None:
    """Whose rows need not be those that were committed under the number."""
    patch.set(unit_commit, "is_last", lambda receipts, receipt, _: receipts.has(receipt))


@mutation("", logs=True)
def adopts_in_another_order(patch: Patch) -> None:
    def adopt_reversed(log: str, *, staged: Sequence[Staged], **named: object) -> Edit:
        return adopt(log, staged=staged[::-1], **named)  # type: ignore[arg-type]

    _adopting(patch, adopt_reversed)


@mutation("", logs=True)
def adopts_txids_that_decrease(patch: Patch) -> None:
    """What was appended after a task began is not looked at."""

    def adopt_unseen(
        log: str,
        *,
        incarnation: str,
        epoch: int,
        receipt: Receipt,
        staged: Sequence[Staged],
        now_ms: int,
    ) -> Edit:
        def edit(manifest: Manifest) -> Manifest:
            check_incarnation(manifest, log, incarnation)
            if manifest.receipts.has(receipt):
                return manifest
            check_writable(manifest, log)
            if manifest.epoch != epoch or any(each.epoch != epoch for each in staged):
                raise LostOwnership(log)
            if any(segment.sealed is None for segment in manifest.segments):
                return manifest
            ledgers = [
                (each.ledger_id, replace(each.sealed, last_txid=each.sealed.first_txid))
                for each in staged
            ]
            return manifest.with_adopted(ledgers, now_ms, receipt)

        return edit

    _adopting(patch, adopt_unseen)


@mutation("", logs=True)
def stages_entries_without_their_place(patch: Patch) -> None:
    def misplaced(payload: bytes, *, base_index: int, **named: object) -> bytes:
        return placed(payload, base_index=0, **named)  # type: ignore[arg-type]

    patch.set(sink, "placed", misplaced)


@mutation("", logs=True)
def counts_a_staged_ledger_before_it_is_closed(patch: Patch) -> None:
    """Its last entries are not waited for."""
    honest = Stager.seal

    async def seal(self: Stager) -> Staged:
        staged = await honest(self)
        return replace(staged, sealed=replace(staged.sealed, records=staged.sealed.records + 1))

    patch.set(Stager, "seal", seal)


def _standing(patch: Patch, is_over: Callable[[StagedFor, Manifest], bool]) -> None:
    honest = orphans.standing

    def standing(
        ledger_id: LedgerId, stamp: Stamp | StagedFor, manifest: Manifest | None
    ) -> OrphanKind:
        found = honest(ledger_id, stamp, manifest)
        undecided = found in {OrphanKind.PENDING, OrphanKind.DISCARDED}
        if not isinstance(stamp, StagedFor) or manifest is None or not undecided:
            return found
        return OrphanKind.DISCARDED if is_over(stamp, manifest) else OrphanKind.PENDING

    patch.set(orphans, "standing", standing)
    from dlog.aio.maintain import survey

    patch.set(survey, "standing", standing)


@mutation("", logs=True)
def sweeps_up_what_is_staged_now(patch: Patch) -> None:
    _standing(patch, lambda stamp, manifest: stamp.epoch <= manifest.epoch)


@mutation("", logs=True)
def sweeps_up_what_is_staged_for_later_units(patch: Patch) -> None:
    _standing(
        patch,
        lambda stamp, manifest: manifest.receipts.last(stamp.receipt.origin) is not None,
    )


@mutation("", logs=True)
def keeps_what_zombies_staged(patch: Patch) -> None:
    _standing(patch, lambda stamp, manifest: stamp.epoch < manifest.epoch and False)


@mutation("", logs=True)
def adopts_ledgers_of_an_epoch_before(patch: Patch) -> None:
    """Which the janitor may have deleted, or is about to."""

    def adopt_old(log: str, *, epoch: int, staged: Sequence[Staged], **named: object) -> Edit:
        now = [replace(each, epoch=epoch) for each in staged]
        return adopt(log, epoch=epoch, staged=now, **named)  # type: ignore[arg-type]

    _adopting(patch, adopt_old)
    patch.set(Sink, "assignment", property(_first_assignment))


def _first_assignment(self: Sink) -> object:
    """As tasks have it that outlive the sink they were begun for."""
    tenure = self._tenure
    epoch = max(1, tenure.epoch - 1)
    return sink.Assignment(self.log, tenure.incarnation, epoch, self._settings, tenure.last_txid)


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_sink.py::test_a_unit_that_healing_sent_again_has_its_receipt",
)
def sends_units_without_their_receipt_after_healing(patch: Patch) -> None:
    honest = log_writer.Writing._send

    def send(self: log_writer.Writing) -> list[WritingEffect]:
        effects = honest(self)
        for effect in effects:
            if self._reopened_offset >= 0 and isinstance(effect, SendEntries):
                for batch in effect.batches:
                    batch.carries = None
        return effects

    patch.set(log_writer.Writing, "_send", send)
