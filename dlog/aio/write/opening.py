"""Executes a takeover: does what `protocol.takeover` says, step after step."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from dlog import metrics, spans
from dlog.aio.port import Leadership, LedgerAppender, Ledgers
from dlog.aio.read.segments import seal_of, stamp
from dlog.aio.store.manifests import ManifestNode
from dlog.encryption.keyring import DataKey
from dlog.encryption.ledgers import Sealer, new_data_key, stamp_of
from dlog.errors import NoSuchLog
from dlog.manifest import Manifest
from dlog.protocol import takeover as protocol
from dlog.recordbatch import check_codec
from ledger.errors import BadVersion, LogError
from ledger.machine_loop import run_in_turn

_PARTS: Final[dict[type[protocol.Step], str]] = {
    protocol.ReadManifest: "read_manifest",
    protocol.RecoverSegment: "recover_segment",
    protocol.CreateLedger: "create_ledger",
    protocol.WriteManifest: "write_manifest",
    protocol.CheckLeadership: "check_leadership",
    protocol.DeleteLedger: "delete_ledger",
}


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """The outcome of a takeover: append to *ledger*, as segment *segment*."""

    manifest: Manifest
    segment: int
    ledger: LedgerAppender
    sealer: Sealer | None
    """Seals what is appended; None: the log is not encrypted."""


class TakeoverDriver:
    def __init__(
        self,
        ledgers: Ledgers,
        node: ManifestNode,
        *,
        term: Leadership | None,
        now_ms: Callable[[], int],
        owner: str = "",
        expected_epoch: int | None = None,
        heals: str | None = None,
    ) -> None:
        """See `dlog.protocol.takeover.Takeover`."""
        self._machine = protocol.Takeover(
            node.log, owner=owner, expected_epoch=expected_epoch, heals=heals
        )
        self._owner = owner
        self._why = "open" if heals is None else "heal"
        self._ledgers = ledgers
        self._node = node
        self._term = term
        self._now_ms = now_ms
        self._ledger: LedgerAppender | None = None
        self._sealer: Sealer | None = None
        self._data_key: DataKey | None = None
        """For the ledger that is created next, if the log is encrypted with this one's name."""
        self._opened: OpenedLog | None = None

    async def run(self) -> OpenedLog:
        """Take the log over. Raises what the machine gives up with."""
        begin: protocol.TakeoverEvent = protocol.OpenRequested()
        began = time.monotonic()
        try:
            with spans.span("dlog.takeover", log=self._node.log, why=self._why) as span:
                passed = protocol.TimePassed()
                await run_in_turn(self._machine, begin, self._answer, time_passed=passed)
                if (opened := self._opened) is not None:
                    spans.describe(span, segment=opened.segment, ledger=opened.ledger.ledger_id)
        except BaseException:
            metrics.TAKEOVERS.add(self._why, "failed")
            if self._ledger is not None:
                await self._ledger.abandon()
            raise
        assert self._opened is not None, "it opens, or gives up"
        metrics.TAKEOVERS.add(self._why, "done")
        metrics.TAKEOVER_S.observe(time.monotonic() - began)
        return self._opened

    async def _answer(self, effect: protocol.TakeoverEffect) -> protocol.TakeoverEvent | None:
        match effect:
            case protocol.Opened(manifest, segment):
                assert self._ledger is not None
                self._opened = OpenedLog(manifest, segment, self._ledger, self._sealer)
                return None
            case protocol.GiveUp(error):
                raise error
            case step:
                return await self._try(step)

    async def _try(self, step: protocol.Step) -> protocol.TakeoverEvent:
        if self._must_lead(step):
            return protocol.LeadershipLost()
        began = time.monotonic()
        try:
            return await self._execute(step)
        except LogError as error:
            return protocol.StepFailed(error)
        finally:
            metrics.TAKEOVER_PART_S.add(_PARTS[type(step)], by=time.monotonic() - began)

    def _must_lead(self, effect: protocol.Step) -> bool:
        return (
            self._term is not None
            and isinstance(effect, protocol.LEADERS_ONLY)
            and not self._term.is_current()
        )

    async def _execute(self, effect: protocol.Step) -> protocol.TakeoverEvent:
        match effect:
            case protocol.ReadManifest():
                try:
                    manifest, version = await self._node.read()
                except NoSuchLog:
                    return protocol.ManifestRead(None, -1)
                check_codec(manifest.settings.codec)  # before anybody is fenced
                self._data_key = await new_data_key(manifest.settings.encrypt_with)
                return protocol.ManifestRead(manifest, version)
            case protocol.RecoverSegment():
                sealed = await seal_of(
                    self._ledgers,
                    self._node.log,
                    effect.ledger_id,
                    last_txid=effect.last_txid,
                    created_ms=self._now_ms(),
                )
                return protocol.SegmentRecovered(effect.number, sealed)
            case protocol.CreateLedger():
                return await self._create(effect)
            case protocol.WriteManifest():
                try:
                    return protocol.ManifestWritten(
                        await self._node.write(effect.manifest, effect.version)
                    )
                except BadVersion:
                    return protocol.ManifestConflicted()
            case protocol.DeleteLedger():
                return await self._delete(effect)
            case protocol.CheckLeadership():
                held = self._term is None or await self._term.verify()
                return protocol.LeadershipChecked(held)
            case _:
                assert_never(effect)

    async def _create(self, effect: protocol.CreateLedger) -> protocol.LedgerCreated:
        settings = effect.manifest.settings
        data_key, self._data_key = self._data_key, None  # no two ledgers have one
        if (data_key.name if data_key else "") != settings.encrypt_with:
            data_key = await new_data_key(settings.encrypt_with)
        self._ledger = await self._ledgers.create(
            settings.quorum,
            digest=settings.digest,
            custom=stamp(
                self._node.log,
                effect.manifest.incarnation,
                effect.segment,
                epoch=effect.segment,
                owner=self._owner,
            )
            | stamp_of(data_key),
            degraded_writes=settings.degraded_writes,
        )
        ledger_id = self._ledger.ledger_id
        self._sealer = Sealer.of(data_key, effect.manifest.incarnation, ledger_id)
        return protocol.LedgerCreated(ledger_id, self._now_ms())

    async def _delete(self, effect: protocol.DeleteLedger) -> protocol.LedgerDeleted:
        if self._ledger is not None:
            await self._ledger.abandon()
            self._ledger = None
        try:
            await self._ledgers.delete(effect.ledger_id)
        except LogError:  # the janitor finds it by its stamp
            return protocol.LedgerDeleted()
        return protocol.LedgerDeleted()
