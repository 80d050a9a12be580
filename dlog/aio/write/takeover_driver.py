"""Carries out a takeover: does the actions of `protocol.takeover`."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from dlog import metrics, spans
from dlog.aio.port import Leadership, LedgerAppender, Ledgers
from dlog.aio.read.segments import seal_of, stamp
from dlog.aio.store import ManifestNode
from dlog.encryption.keyring import DataKey
from dlog.encryption.ledgers import Sealer, new_data_key, stamp_of
from dlog.errors import LedByGateway, LostOwnership
from dlog.manifest import Manifest
from dlog.protocol import takeover
from dlog.protocol.actions import DeleteLedger, RecoverSegment
from dlog.protocol.gateway_record import GATEWAYS_PATH, GatewayRecord
from dlog.recordbatch import check_codec
from leader.lifeline import is_gone
from ledger.errors import DamagedMetadata, LogError, NoSuchNode
from ledger.ids import LedgerId
from ledger.metastore.port import children_of
from ledger.procedures import run
from ledger.protocol.procedure import Action

GATEWAYS_ASKED_MAX: Final = 16
"""The newest ones, whether one of them lives."""
_PARTS: Final[dict[type[Action[Any]], str]] = {
    takeover.ReadManifest: "read_manifest",
    takeover.CheckGateways: "read_manifest",
    RecoverSegment: "recover_segment",
    takeover.CreateLedger: "create_ledger",
    takeover.WriteManifest: "write_manifest",
    takeover.CheckLeadership: "check_leadership",
    DeleteLedger: "delete_ledger",
}
_LEADERS_ONLY: Final = (
    takeover.ReadManifest,
    RecoverSegment,
    takeover.CreateLedger,
    takeover.WriteManifest,
)
"""Once the term is over these fail with `LostOwnership`."""


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
        reopens: str | None = None,
        spares_gateways: bool = False,
        is_gateway: bool = False,
    ) -> None:
        """See `dlog.protocol.takeover.take_over`."""
        self._steps = takeover.take_over(
            node.log,
            owner=owner,
            expected_epoch=expected_epoch,
            reopens=reopens,
            spares_gateways=spares_gateways,
            is_gateway=is_gateway,
        )
        self._owner = owner
        self._why = "open" if reopens is None else "reopen"
        self._ledgers = ledgers
        self._node = node
        self._term = term
        self._now_ms = now_ms
        self._ledger: LedgerAppender | None = None
        self._sealer: Sealer | None = None
        self._data_key: DataKey | None = None
        """For the ledger that is created next, if the log is encrypted with this one's name."""

    async def run(self) -> OpenedLog:
        """Take the log over. Raises what `take_over` does."""
        began = time.monotonic()
        try:
            with spans.span("dlog.takeover", log=self._node.log, why=self._why) as span:
                manifest, segment = await run(self._steps, self._perform)
                assert self._ledger is not None, "the manifest lists it"
                spans.describe(span, segment=segment, ledger=self._ledger.ledger_id)
        except BaseException:
            metrics.TAKEOVERS.add(self._why, "failed")
            if self._ledger is not None:
                await self._ledger.abandon()
            raise
        metrics.TAKEOVERS.add(self._why, "done")
        metrics.TAKEOVER_S.observe(time.monotonic() - began)
        return OpenedLog(manifest, segment, self._ledger, self._sealer)

    async def _perform(self, action: Action[Any]) -> object:
        led = self._term is None or self._term.is_current()
        if isinstance(action, _LEADERS_ONLY) and not led:
            raise LostOwnership(self._node.log, "leadership was lost during the takeover")
        began = time.monotonic()
        try:
            return await self._execute(action)
        finally:
            metrics.TAKEOVER_PART_S.add(_PARTS[type(action)], by=time.monotonic() - began)

    async def _execute(self, action: Action[Any]) -> object:
        match action:
            case takeover.ReadManifest():
                manifest, version = await self._node.read()
                check_codec(manifest.settings.codec)  # before anybody is fenced
                self._data_key = await new_data_key(manifest.settings.encrypt_with)
                return manifest, version
            case RecoverSegment(ledger_id, last_txid):
                return await seal_of(
                    self._ledgers,
                    self._node.log,
                    ledger_id,
                    last_txid=last_txid,
                    created_ms=self._now_ms(),
                )
            case takeover.CreateLedger(segment, manifest):
                return await self._create(segment, manifest)
            case takeover.WriteManifest(manifest, version):
                return await self._node.write(manifest, version)
            case DeleteLedger(ledger_id):
                await self._delete(ledger_id)
            case takeover.CheckGateways():
                await self._check_gateways()
            case takeover.CheckLeadership():
                return self._term is None or await self._term.verify()
            case _:
                raise AssertionError(f"no action of a takeover: {action}")
        return None

    async def _check_gateways(self) -> None:
        store, security = self._ledgers.store, self._ledgers.security
        for name in (await children_of(store, GATEWAYS_PATH))[-GATEWAYS_ASKED_MAX:]:
            path = f"{GATEWAYS_PATH}/{name}"
            with suppress(NoSuchNode, DamagedMetadata, ValueError):
                gateway = GatewayRecord.decode((await store.get(path)).value, path=path)
                lifeline = gateway.lifeline
                if lifeline is None or not await is_gone(lifeline, security=security):
                    raise LedByGateway(self._node.log, gateway.address)

    async def _create(self, segment: int, manifest: Manifest) -> tuple[LedgerId, int]:
        settings = manifest.settings
        data_key, self._data_key = self._data_key, None  # no two ledgers have one
        if (data_key.name if data_key else "") != settings.encrypt_with:
            data_key = await new_data_key(settings.encrypt_with)
        self._ledger = await self._ledgers.create(
            settings.quorum,
            digest=settings.digest,
            custom=stamp(
                self._node.log, manifest.incarnation, segment, epoch=segment, owner=self._owner
            )
            | stamp_of(data_key),
            degraded_writes=settings.degraded_writes,
        )
        ledger_id = self._ledger.ledger_id
        self._sealer = Sealer.of(data_key, manifest.incarnation, ledger_id)
        return ledger_id, self._now_ms()

    async def _delete(self, ledger_id: LedgerId) -> None:
        if self._ledger is not None:
            await self._ledger.abandon()
            self._ledger = None
        with suppress(LogError):  # the janitor finds it by its stamp
            await self._ledgers.delete(ledger_id)
