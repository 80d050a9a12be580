"""dlog: a replicated log built from fenced ledgers. `dlog.aio` has the same names for asyncio."""

from dlog.errors import (
    AlreadyPromoted,
    AppendFailed,
    AppendOutcomeUnknown,
    AppendRejected,
    BarrierNotReached,
    ConsumerBusy,
    ConsumerFenced,
    InvalidName,
    InvalidPosition,
    InvalidSettings,
    LogClosed,
    LogExists,
    LogSealed,
    LostOwnership,
    NoSuchConsumer,
    NoSuchLog,
    NotPromoted,
    RecordTooLarge,
    RollPostponed,
    TakeoverFailed,
    Trimmed,
    TxidOutOfOrder,
    UnexpectedOffset,
)
from dlog.log import Log
from dlog.position import DLSN, Record, RecordId, Timestamp, Txid
from dlog.reading import Consumer, ManyReader, Reader
from dlog.recordbatch import Codec
from dlog.settings import LogSettings
from dlog.standby import Standby
from ledger.errors import LogError, TooManyPending

__all__ = [
    "DLSN",
    "AlreadyPromoted",
    "AppendFailed",
    "AppendOutcomeUnknown",
    "AppendRejected",
    "BarrierNotReached",
    "Codec",
    "Consumer",
    "ConsumerBusy",
    "ConsumerFenced",
    "InvalidName",
    "InvalidPosition",
    "InvalidSettings",
    "Log",
    "LogClosed",
    "LogError",
    "LogExists",
    "LogSealed",
    "LogSettings",
    "LostOwnership",
    "ManyReader",
    "NoSuchConsumer",
    "NoSuchLog",
    "NotPromoted",
    "Reader",
    "Record",
    "RecordId",
    "RecordTooLarge",
    "RollPostponed",
    "Standby",
    "TakeoverFailed",
    "Timestamp",
    "TooManyPending",
    "Trimmed",
    "Txid",
    "TxidOutOfOrder",
    "UnexpectedOffset",
]
