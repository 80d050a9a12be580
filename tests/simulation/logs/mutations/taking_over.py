"""Bugs of opening a log: who may write it, and what its writer before left."""

import asyncio
from dataclasses import replace
from typing import Final

from dlog.aio.log import Log
from dlog.aio.port import Ledgers
from dlog.aio.read.segments import seal_of
from dlog.aio.standby import Standby
from dlog.aio.write import opening
from dlog.aio.write.opening import OpenedLog, TakeoverDriver
from dlog.manifest import Sealed
from dlog.protocol import takeover
from dlog.protocol.takeover import Takeover, TakeoverEffect
from leader import Term
from ledger.errors import (
    LogError,
    NoSuchLedger,
    RemoteError,
)
from ledger.ids import LedgerId
from tests.simulation.logs.mutations.sealing import seal_by_lac
from tests.simulation.mutations.mutation import Patch, mutation

SWAP_LATER_S: Final = 0.02


@mutation("seeds", logs=True)
def fences_only_the_last_ledger(patch: Patch) -> None:
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, effect: takeover.Step) -> takeover.TakeoverEvent:
        if isinstance(effect, takeover.RecoverSegment):
            manifest, _ = await self._node.read()
            if manifest.last is not None and manifest.last.number != effect.number:
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


@mutation("seeds", logs=True)
def swaps_before_it_recovers(patch: Patch) -> None:
    """The end is what is confirmed before; the ledgers are fenced when the log is ours."""
    honest = TakeoverDriver.run

    async def run(self: TakeoverDriver) -> OpenedLog:
        found = await honest(self)
        for segment in found.manifest.segments[-3:-1]:
            await self._ledgers.recover(segment.ledger_id)
        return found

    patch.set(opening, "seal_of", seal_by_lac)
    patch.set(TakeoverDriver, "run", run)


@mutation("seeds", logs=True)
def appends_before_the_swap(patch: Patch) -> None:
    """The ledger is handed out while the manifest is still being written."""
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, effect: takeover.Step) -> takeover.TakeoverEvent:
        if not isinstance(effect, takeover.WriteManifest):
            return await honest(self, effect)
        manifest, version, node = effect.manifest, effect.version, self._node

        async def write_later() -> None:
            await asyncio.sleep(SWAP_LATER_S)
            try:
                await node.write(manifest, version)
            except RemoteError:
                return

        asyncio.get_running_loop().create_task(write_later())
        return takeover.ManifestWritten(version + 1)

    patch.set(TakeoverDriver, "_execute", execute)


@mutation("seeds", logs=True)
def keeps_what_it_read_before_it_won(patch: Patch) -> None:
    """After a conflict only the version is read again."""
    honest = Takeover._manifest_read

    def manifest_read(self: Takeover, event: takeover.ManifestRead) -> TakeoverEffect:
        if self._manifest is not None and event.manifest is not None:
            event = takeover.ManifestRead(self._manifest, event.version)
        return honest(self, event)

    patch.set(Takeover, "_manifest_read", manifest_read)


@mutation("seeds", logs=True)
def deletes_its_ledger_although_the_swap_may_have_arrived(patch: Patch) -> None:
    honest = Takeover._failed

    def failed(self: Takeover, error: LogError) -> TakeoverEffect:
        if self._phase is takeover.Phase.WRITING and error.outcome_unknown:
            return self._discard(error)
        return honest(self, error)

    patch.set(Takeover, "_failed", failed)


@mutation("", logs=True)
def takes_the_next_offset_from_the_lac(patch: Patch) -> None:
    """Not from the last record that recovery found."""

    async def seal(
        ledgers: Ledgers, log: str, ledger_id: LedgerId, *, last_txid: int, created_ms: int
    ) -> Sealed:
        seen = await seal_by_lac(
            ledgers, log, ledger_id, last_txid=last_txid, created_ms=created_ms
        )
        true = await seal_of(ledgers, log, ledger_id, last_txid=last_txid, created_ms=created_ms)
        return replace(true, records=seen.records, last_txid=seen.last_txid)

    patch.set(opening, "seal_of", seal)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/dlog/protocol/test_takeover.py"
    "::test_a_ledger_that_is_gone_is_a_race_and_no_trouble_however_often_there_was_some",
)
def takes_a_ledger_that_is_gone_for_trouble(patch: Patch) -> None:
    """A seed found it; a race has to come on top of all the trouble that is borne, which a thousand
    seeds may miss."""
    honest = Takeover._failed

    def failed(self: Takeover, error: LogError) -> TakeoverEffect:
        if isinstance(error, NoSuchLedger):
            self._troubles += 1
            if self._troubles >= takeover.TROUBLES_MAX:
                return self._give_up(error)
        return honest(self, error)

    patch.set(Takeover, "_failed", failed)


@mutation("", logs=True)
def serves_before_it_has_read_the_end(patch: Patch) -> None:
    async def catch_up(_self: Standby, _term: Term, _log: Log) -> None:
        return

    patch.set(Standby, "_catch_up", catch_up)
