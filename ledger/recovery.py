"""Drives `protocol.recovery` against real bookies and a real metadata store."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import Final, assert_never

from ledger import metrics
from ledger.entry import Header
from ledger.environment import Credentials, Environment, repair_credentials, runs_of, with_ranges
from ledger.errors import (
    ConfirmedEntryMissing,
    KeyDiffers,
    LogError,
    MetadataUnavailable,
    NoSuchLedger,
    RecoveryFailed,
)
from ledger.ids import LedgerId
from ledger.machine_loop import MachineLoop, carry_out
from ledger.metadata import LedgerMetadata
from ledger.protocol import common
from ledger.protocol import recovery_events as protocol
from ledger.protocol.answers import proven_lac, verified
from ledger.protocol.recovery import Recovery
from ledger.quorum import holds
from ledger.requests import LacQuery, ReadQuery, Status

READ_BYTES_MAX: Final = 4 * 1024 * 1024
RUN_BYTES_MAX: Final = 4 * 1024 * 1024
"""What was found while a bookie hung goes to its replacement in several runs."""


async def recover(
    environment: Environment,
    credentials: Credentials,
    metadata: LedgerMetadata,
    version: int,
) -> LedgerMetadata:
    """Fence and close the ledger, or adopt what another recoverer closed it with.

    Raises `RecoveryFailed` (nothing was decided), `NoSuchLedger`, `KeyDiffers`,
    `AccessDenied`, `MetadataUnavailable`."""
    recovering = _Recovering(environment, credentials, metadata, version)
    began = time.monotonic()
    try:
        closed = await recovering.finished()
        metrics.RECOVERIES.add("done")
        metrics.RECOVERY_S.observe(time.monotonic() - began)
        return closed
    except LogError:
        metrics.RECOVERIES.add("failed")
        raise
    finally:
        recovering.stop()


async def recover_without_password(environment: Environment, ledger_id: LedgerId) -> LedgerMetadata:
    """Do what `recover` does, with what the metadata say (`repair_credentials`)."""
    metadata, version = await environment.ledgers.read(ledger_id, fresh=True)
    return await recover(environment, repair_credentials(ledger_id, metadata), metadata, version)


class _Recovering:
    def __init__(
        self,
        environment: Environment,
        credentials: Credentials,
        metadata: LedgerMetadata,
        version: int,
    ) -> None:
        self._environment = environment
        self._credentials = credentials
        self._ledger_id = credentials.ledger_id
        self._metadata = metadata
        self._quorum = metadata.quorum
        self._frames: dict[int, bytes] = {}
        self._result: asyncio.Future[LedgerMetadata] = asyncio.get_running_loop().create_future()
        self._run: MachineLoop[protocol.RecoveryEvent, protocol.RecoveryEffect] = MachineLoop(
            Recovery(self._ledger_id, metadata, version),
            self._execute,
            time_passed=common.TimePassed(),
            broken=self._fail,
        )

    async def finished(self) -> LedgerMetadata:
        self._run.post(protocol.RecoveryStarted())
        return await self._result

    def stop(self) -> None:
        self._run.stop()

    def _execute(self, effect: protocol.RecoveryEffect) -> None:
        match effect:
            case protocol.SendFence():
                self._run.spawn(self._fence(effect))
            case protocol.SendRecoveryRead():
                self._run.spawn(self._read(effect))
            case protocol.ReadBase():
                self._run.spawn(self._read_base(effect))
            case protocol.WriteBack():
                self._write_back(effect)
            case protocol.ForgetEntries():
                for entry_id in [e for e in self._frames if e <= effect.last]:
                    del self._frames[entry_id]
            case common.ChooseReplacements():
                chosen = self._environment.replacements(
                    self._quorum, effect.ensemble, effect.indexes, effect.exclude
                )
                self._run.post(common.ReplacementsChosen(chosen))
            case common.WriteMetadata() | common.ReadMetadata():
                ledgers = self._environment.ledgers
                self._run.spawn(carry_out(effect, ledgers, self._ledger_id))
            case protocol.FinishRecovery():
                self._environment.doubt(self._ledger_id, effect.in_doubt)
                if not self._result.done():
                    self._result.set_result(effect.metadata)
            case protocol.FailRecovery():
                self._fail(self._error_of(effect))
            case _:
                assert_never(effect)

    async def _fence(self, effect: protocol.SendFence) -> protocol.RecoveryEvent:
        answer = await self._environment.transport.read_lac(
            effect.bookie, LacQuery(self._ledger_id, self._credentials.key, fence=True)
        )
        lac = proven_lac(answer.lac_proof, self._ledger_id, self._credentials.checks)
        return protocol.lac_read(effect, answer, lac)

    async def _read(self, effect: protocol.SendRecoveryRead) -> protocol.RecoveryEvent:
        query = ReadQuery(
            self._ledger_id,
            self._credentials.key,
            effect.first,
            effect.last,
            bytes_max=READ_BYTES_MAX,
            fence=effect.fence,
            repairs=True,
        )
        answer = await self._environment.transport.read(effect.bookie, query)
        self._environment.reported(effect.bookie, answer.status)
        found = verified(answer, self._ledger_id, self._credentials.checks)
        for entry_id, frame in found.frames.items():
            self._frames.setdefault(entry_id, bytes(frame))
        return protocol.entries_read(effect, found)

    async def _read_base(self, effect: protocol.ReadBase) -> protocol.RecoveryEvent:
        entry_id = effect.entry_id
        query = ReadQuery(self._ledger_id, self._credentials.key, entry_id, entry_id, repairs=True)
        answer = await self._environment.transport.read(effect.bookie, query)
        found = verified(answer, self._ledger_id, self._credentials.checks)
        header: Header | None = found.headers.get(entry_id)
        return protocol.BaseRead(effect.index, None if header is None else header.length)

    def _write_back(self, effect: protocol.WriteBack) -> None:
        ids = [
            entry_id
            for entry_id in range(effect.first, effect.last + 1)
            if holds(effect.index, entry_id, self._quorum)
        ]
        runs = runs_of(ids, self._frames, self._credentials, bytes_max=RUN_BYTES_MAX, recovery=True)
        for run, first, last in with_ranges(runs, effect.first, effect.last):
            sent = replace(effect, first=first, last=last)
            self._environment.transport.add(effect.bookie, run, partial(self._written, sent))

    def _written(self, sent: protocol.WriteBack, status: Status) -> None:
        self._environment.reported(sent.bookie, status)
        what = (sent.index, sent.generation, sent.first, sent.last)
        if status is Status.OK:
            self._run.post(protocol.WriteBackStored(*what))
        else:
            self._run.post(protocol.WriteBackRefused(*what, status))

    def _fail(self, error: BaseException) -> None:
        if not self._result.done():
            self._result.set_exception(error)

    def _error_of(self, failed: protocol.FailRecovery) -> LogError:
        match failed.failure:
            case protocol.RecoveryFailure.DELETED:
                return NoSuchLedger(self._ledger_id)
            case protocol.RecoveryFailure.WRONG_KEY:
                return KeyDiffers(self._ledger_id)
            case protocol.RecoveryFailure.ACCESS_DENIED:
                what = f"recover ledger {self._ledger_id}"
                return self._environment.denied(what, "writer", self._metadata)
            case protocol.RecoveryFailure.METADATA_UNAVAILABLE:
                return MetadataUnavailable(
                    self._environment.uri, f"recovery of ledger {self._ledger_id}", 0.0
                )
            case (
                protocol.RecoveryFailure.NOT_COVERED
                | protocol.RecoveryFailure.UNDECIDED
                | protocol.RecoveryFailure.NOT_ENOUGH_BOOKIES
            ):
                return RecoveryFailed(self._ledger_id, failed.failure.value)
            case protocol.RecoveryFailure.BASE_UNREADABLE:
                return ConfirmedEntryMissing(self._ledger_id, failed.claimed, failed.claimants)
            case _:
                assert_never(failed.failure)
