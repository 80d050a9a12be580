"""Bugs of opening a log: who may write it, and what its writer before left."""

import asyncio
from dataclasses import replace
from typing import Any, Final, cast
from weakref import WeakKeyDictionary, WeakSet

from dlog.aio.log import Log
from dlog.aio.port import Ledgers
from dlog.aio.read.segments import seal_of
from dlog.aio.standby import Standby
from dlog.aio.write import takeover_driver
from dlog.aio.write.takeover_driver import OpenedLog, TakeoverDriver
from dlog.errors import LostOwnership
from dlog.manifest import Manifest, Sealed
from dlog.protocol import takeover
from dlog.protocol.actions import RecoverSegment
from leader import Term
from ledger.errors import (
    LogError,
    NoSuchLedger,
    RemoteError,
)
from ledger.ids import LedgerId
from ledger.protocol.procedure import Action
from tests.simulation.logs.mutations.sealing import seal_by_lac
from tests.simulation.mutations.mutation import Patch, mutation

SWAP_LATER_S: Final = 0.02


@mutation("seeds", logs=True)
def fences_only_the_last_ledger(patch: Patch) -> None:
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, action: Action[Any]) -> object:
        if isinstance(action, RecoverSegment):
            manifest, _ = await self._node.read()
            if manifest.last is not None and manifest.last.ledger_id != action.ledger_id:
                return await seal_by_lac(
                    self._ledgers,
                    self._node.log,
                    action.ledger_id,
                    last_txid=action.last_txid,
                    created_ms=0,
                )
        return await honest(self, action)

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

    patch.set(takeover_driver, "seal_of", seal_by_lac)
    patch.set(TakeoverDriver, "run", run)


@mutation("seeds", logs=True)
def appends_before_the_swap(patch: Patch) -> None:
    """The ledger is handed out while the manifest is still being written."""
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, action: Action[Any]) -> object:
        if not isinstance(action, takeover.WriteManifest):
            return await honest(self, action)
        manifest, version, node = action.manifest, action.version, self._node

        async def write_later() -> None:
            await asyncio.sleep(SWAP_LATER_S)
            try:
                await node.write(manifest, version)
            except RemoteError:
                return

        asyncio.get_running_loop().create_task(write_later())
        return version + 1

    patch.set(TakeoverDriver, "_execute", execute)


@mutation("seeds", logs=True)
def keeps_what_it_read_before_it_won(patch: Patch) -> None:
    """After a conflict only the version is read again."""
    honest = TakeoverDriver._execute
    kept: WeakKeyDictionary[TakeoverDriver, Manifest] = WeakKeyDictionary()
    restarted: WeakSet[TakeoverDriver] = WeakSet()

    async def execute(self: TakeoverDriver, action: Action[Any]) -> object:
        answer = await honest(self, action)
        if isinstance(action, takeover.CheckLeadership):
            restarted.add(self)
        if isinstance(action, takeover.CreateLedger):
            kept[self] = action.manifest
        if isinstance(action, takeover.ReadManifest) and self in restarted and self in kept:
            restarted.discard(self)
            _, version = cast("tuple[Manifest, int]", answer)
            return kept[self], version
        return answer

    patch.set(TakeoverDriver, "_execute", execute)


@mutation("seeds", logs=True)
def deletes_its_ledger_although_the_swap_may_have_arrived(patch: Patch) -> None:
    honest = TakeoverDriver._execute

    async def execute(self: TakeoverDriver, action: Action[Any]) -> object:
        try:
            return await honest(self, action)
        except LogError as error:
            if isinstance(action, takeover.WriteManifest) and error.outcome_unknown:
                raise LostOwnership(self._node.log) from error
            raise

    patch.set(TakeoverDriver, "_execute", execute)


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

    patch.set(takeover_driver, "seal_of", seal)


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
    honest = takeover._Attempts.failed

    def failed(self: takeover._Attempts, error: LogError) -> None:
        if isinstance(error, NoSuchLedger):
            self._errors += 1
            if self._errors >= takeover.TROUBLES_MAX:
                raise error
        honest(self, error)

    patch.set(takeover._Attempts, "failed", failed)


@mutation("", logs=True)
def serves_before_it_has_read_the_end(patch: Patch) -> None:
    async def catch_up(_self: Standby, _term: Term, _log: Log) -> None:
        return

    patch.set(Standby, "_catch_up", catch_up)
