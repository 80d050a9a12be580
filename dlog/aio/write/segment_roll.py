"""Does the steps of a roll that take time: creates, lists, closes, seals."""

from collections.abc import Callable, MutableMapping
from typing import assert_never

from dlog import metrics
from dlog.aio.maintain.trim import apply_retention
from dlog.aio.port import LedgerAppender, Ledgers
from dlog.aio.read.segments import seal_of, stamp
from dlog.aio.store import ManifestNode, delete_listed
from dlog.encryption.keyring import DataKey
from dlog.encryption.ledgers import Sealer, new_data_key, stamp_of
from dlog.errors import CodecMissing, EncryptionMissing, InvalidKeys, KeyMissing
from dlog.manifest import Manifest
from dlog.protocol import roll as protocol
from dlog.protocol.edits import add_segment, seal_segment
from dlog.protocol.log_writer_events import TakeRollStep
from dlog.recordbatch import Codec, check_codec
from dlog.settings import LogSettings
from ledger.errors import LogError, NotEnoughBookies
from ledger.ids import LedgerId
from ledger.log_events import get_logger

Compression = tuple[Codec, int]
"""A codec and its level."""

_log = get_logger(__name__)


class RollSteps:
    """Those of one writer, which keeps the ledgers that it appends to in *appenders*.

    *compressions* has for each of them how its entries are compressed: as the manifest said that
    listed its segment. So what is set while the log is written counts from the next one on.
    *sealers* has one for each of them that is encrypted, as the manifest said
    before it was made."""

    def __init__(
        self,
        ledgers: Ledgers,
        node: ManifestNode,
        manifest: Manifest,
        appenders: MutableMapping[LedgerId, LedgerAppender],
        compressions: MutableMapping[LedgerId, Compression],
        sealers: MutableMapping[LedgerId, Sealer],
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._ledgers = ledgers
        self._node = node
        self._incarnation = manifest.incarnation
        self._settings = manifest.settings
        self._epoch, self._owner = manifest.epoch, manifest.owner
        self._appenders = appenders
        self._compressions = compressions
        self._sealers = sealers
        self._encrypt_with = manifest.settings.encrypt_with
        """Of the ledger that was made last."""
        self._compression = compression_of(manifest.settings)
        """Of the segment that was listed last."""
        self._now_ms = now_ms

    async def take(self, effect: TakeRollStep) -> protocol.RollEvent:
        """Do it; return the event it ends with. Raises what makes it fail."""
        step = effect.step
        match step:
            case protocol.CreateSegmentLedger():
                return await self._create(step)
            case protocol.ListSegment():
                return await self._list(step)
            case protocol.CloseLedger():
                return await self._close(step, _previous(effect), effect.previous_txid)
            case protocol.SealSegment():
                return await self._seal(step, _previous(effect))
            case _:
                assert_never(step)

    async def _create(self, step: protocol.CreateSegmentLedger) -> protocol.RollEvent:
        manifest, _ = await self._node.read()  # settings count as they are now
        data_key = await self._data_key(manifest.settings)
        try:
            ledger = await self._new_ledger(step, data_key)
        except NotEnoughBookies:
            if not manifest.settings.degraded_writes:
                raise
            ledger = await self._new_ledger(step, data_key, degraded_writes=True)
        self._appenders[ledger.ledger_id] = ledger
        sealer = Sealer.of(data_key, self._incarnation, ledger.ledger_id)
        if sealer is not None:
            self._sealers[ledger.ledger_id] = sealer
        return protocol.LedgerCreated(ledger.ledger_id)

    async def _data_key(self, settings: LogSettings) -> DataKey | None:
        """Return the next ledger's. If it needs a key that is not there, it is as the one before,
        and what was encrypted stays so."""
        if settings.encrypt_with != self._encrypt_with:
            try:
                data_key = await new_data_key(settings.encrypt_with)
            except (EncryptionMissing, InvalidKeys, KeyMissing) as error:
                # No reason to end a writer: somebody else set it.
                _log.warning("encryption_not_changed", log=self._node.log, error=str(error))
            else:
                self._encrypt_with = settings.encrypt_with
                return data_key
        return await new_data_key(self._encrypt_with)

    async def _new_ledger(
        self,
        step: protocol.CreateSegmentLedger,
        data_key: DataKey | None,
        *,
        degraded_writes: bool = False,
    ) -> LedgerAppender:
        return await self._ledgers.create(
            self._settings.quorum,
            digest=self._settings.digest,
            custom=stamp(
                self._node.log,
                self._incarnation,
                step.segment,
                epoch=self._epoch,
                owner=self._owner,
            )
            | stamp_of(data_key),
            degraded_writes=degraded_writes,
        )

    async def _list(self, step: protocol.ListSegment) -> protocol.RollEvent:
        manifest = await self._node.edit(
            add_segment(
                self._node.log,
                incarnation=self._incarnation,
                own_segment=step.segment - 1,
                number=step.segment,
                ledger_id=step.ledger_id,
                now_ms=self._now_ms(),
            )
        )
        self._compressions[step.ledger_id] = self._compression_now(manifest.settings)
        return protocol.SegmentListed()

    def _compression_now(self, settings: LogSettings) -> Compression:
        try:
            check_codec(settings.codec)
        except CodecMissing as error:  # no reason to end a writer: somebody else set it
            _log.warning("codec_not_changed", log=self._node.log, error=str(error))
        else:
            self._compression = compression_of(settings)
        return self._compression

    async def _close(
        self, step: protocol.CloseLedger, previous: LedgerId, last_txid: int
    ) -> protocol.RollEvent:
        if not step.recover:
            await self._appenders[previous].close()
        sealed = await seal_of(
            self._ledgers,
            self._node.log,
            previous,
            last_txid=last_txid,
            created_ms=self._now_ms(),
        )
        return protocol.LedgerClosed(sealed)

    async def _seal(self, step: protocol.SealSegment, previous: LedgerId) -> protocol.RollEvent:
        manifest = await self._node.edit(
            seal_segment(self._node.log, step.segment, previous, step.sealed, now_ms=self._now_ms())
        )
        self._appenders.pop(previous, None)  # closed: there is nothing to let go of
        self._compressions.pop(previous, None)
        self._sealers.pop(previous, None)
        metrics.ROLLS.add()
        try:
            manifest = await apply_retention(
                self._ledgers, self._node, manifest, now_ms=self._now_ms()
            )
            await delete_listed(self._ledgers, self._node, manifest)
        except LogError as error:  # they stay listed: the next roll or the janitor deletes them
            _log.warning("deletion_postponed", log=self._node.log, error=str(error))
        return protocol.SegmentSealed()


def compression_of(settings: LogSettings) -> Compression:
    return settings.codec, settings.codec_level


def _previous(effect: TakeRollStep) -> LedgerId:
    assert effect.previous is not None
    return effect.previous
