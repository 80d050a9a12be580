"""Bugs of a writer that heals: what its ledger held, and whose log it is by now."""

from dlog.aio.opening import OpenedLog, TakeoverDriver
from dlog.aio.writer import LogWriter
from dlog.manifest import Manifest
from dlog.protocol import takeover
from dlog.protocol.edits import check_incarnation
from dlog.protocol.takeover import Takeover, TakeoverEffect
from tests.simulation.logs.mutations.sealing import seal_by_lac
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("", logs=True)
def heals_by_sending_again_what_the_log_has(patch: Patch) -> None:
    """What was in flight is sent to the new ledger, behind what recovery kept of it."""
    honest = LogWriter._healed

    def healed(self: LogWriter, opened: OpenedLog) -> None:
        self._packer.put_all_back()
        self._next_offset += opened.manifest.sealed_end - self._confirmed_offset
        self._confirmed_offset = opened.manifest.sealed_end
        honest(self, opened)

    patch.set(LogWriter, "_healed", healed)


@mutation("", logs=True)
def heals_and_takes_all_that_was_in_flight_for_kept(patch: Patch) -> None:
    honest = LogWriter._healed

    def healed(self: LogWriter, opened: OpenedLog) -> None:
        while self._packer.in_flight:
            self._confirm(self._packer.confirmed(), self._confirmed_entry + 1)
        self._confirmed_offset = opened.manifest.sealed_end
        honest(self, opened)

    patch.set(LogWriter, "_healed", healed)


@mutation("", logs=True)
def heals_without_closing_the_old_ledger(patch: Patch) -> None:
    """What is confirmed is taken for its end, which whoever opens next may move."""
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, effect: TakeoverEffect) -> takeover.TakeoverEvent:
        if isinstance(effect, takeover.RecoverSegment) and self._machine._heals is not None:
            sealed = await seal_by_lac(
                self._ledgers,
                self._node.log,
                effect.ledger_id,
                last_txid=effect.last_txid,
                created_ms=0,
            )
            return takeover.SegmentRecovered(effect.number, sealed)
        return await honest(self, effect)

    patch.set(TakeoverDriver, "_execute", execute)


@mutation("", logs=True)
def heals_over_whoever_took_the_log(patch: Patch) -> None:
    def check_expected(self: Takeover, manifest: Manifest) -> None:
        if self._heals is not None:
            check_incarnation(manifest, self.log, self._heals)

    patch.set(Takeover, "_check_expected", check_expected)


@mutation("", logs=True)
def looks_at_the_epoch_once(patch: Patch) -> None:
    """Who heals and is slower than a successor takes the log from it at the next attempt."""
    honest = Takeover._check_expected

    def check_expected(self: Takeover, manifest: Manifest) -> None:
        if self._manifest is None or self._heals is None:
            honest(self, manifest)
        else:
            check_incarnation(manifest, self.log, self._heals)

    patch.set(Takeover, "_check_expected", check_expected)
