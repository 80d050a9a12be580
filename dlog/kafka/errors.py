"""Refusals of requests: a code of Kafka's for the client, and a sentence for people.

One table says which code an error of dlog has. A code decides what a client does: it tries again
at once, looks for the leader again, or gives up. So an outcome that is unknown has a code on which
an idempotent producer sends the same batch again, and nothing that may pass has one on which
clients give up.
"""

from typing import Final

from kio.schema.errors import ErrorCode

from dlog.errors import (
    AppendFailed,
    AppendOutcomeUnknown,
    BatchTooLarge,
    CodecMissing,
    EpochChanged,
    InvalidName,
    InvalidPosition,
    InvalidSettings,
    LogClosed,
    LogExists,
    LogRecreated,
    LogSealed,
    LostOwnership,
    ManifestTooLarge,
    NoSuchLog,
    OffsetOutOfRange,
    RecordTooLarge,
    TakeoverFailed,
    Trimmed,
)
from dlog.kafka.protocol.topics import (
    InvalidTopic,
    InvalidTopicConfig,
    NoSuchTopic,
    TopicExists,
)
from ledger.errors import (
    AccessDenied,
    BookieUnavailable,
    EntryUnavailable,
    InvalidQuorum,
    InvalidValue,
    LedgerFenced,
    LogError,
    MetadataDenied,
    MetadataUnavailable,
    NotEnoughBookies,
    StorageError,
    TooManyPending,
)


class KafkaRefusal(Exception):
    """A request, or a part of it, was not done. `str` of it is a sentence for people."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class DamagedGroupRecord(StorageError):
    """Its groups have no coordinator until somebody acts."""

    def __init__(self, log: str, offset: int, reason: str) -> None:
        super().__init__(
            f"log {log!r}: the record at offset {offset} is not one of a consumer group: {reason}. "
            "Its groups have no coordinator until the log is restored from a backup, or deleted "
            "together with all offsets that they committed"
        )
        self.log, self.offset, self.reason = log, offset, reason


class GroupRecordTooNew(StorageError):
    """Another gateway, of a newer version, wrote it."""

    def __init__(self, log: str, offset: int, version: int, known: int) -> None:
        super().__init__(
            f"log {log!r}: the record at offset {offset} has version {version}; this gateway knows "
            f"versions up to {known}. Upgrade it: another gateway wrote that"
        )
        self.log, self.offset, self.version, self.known = log, offset, version, known


_CODES: Final[dict[type[LogError], ErrorCode]] = {
    LostOwnership: ErrorCode.not_leader_or_follower,
    LedgerFenced: ErrorCode.not_leader_or_follower,
    EpochChanged: ErrorCode.not_leader_or_follower,
    TakeoverFailed: ErrorCode.not_leader_or_follower,
    AppendFailed: ErrorCode.not_leader_or_follower,
    LogClosed: ErrorCode.not_leader_or_follower,
    # Producers send the same batch again, with the same sequence: it is in the log at most once.
    AppendOutcomeUnknown: ErrorCode.not_leader_or_follower,
    NoSuchTopic: ErrorCode.unknown_topic_or_partition,
    NoSuchLog: ErrorCode.unknown_topic_or_partition,
    LogRecreated: ErrorCode.unknown_topic_or_partition,
    TopicExists: ErrorCode.topic_already_exists,
    LogExists: ErrorCode.topic_already_exists,
    LogSealed: ErrorCode.policy_violation,
    Trimmed: ErrorCode.offset_out_of_range,
    OffsetOutOfRange: ErrorCode.offset_out_of_range,
    InvalidPosition: ErrorCode.offset_out_of_range,
    RecordTooLarge: ErrorCode.message_too_large,
    BatchTooLarge: ErrorCode.message_too_large,
    CodecMissing: ErrorCode.unsupported_compression_type,
    InvalidName: ErrorCode.invalid_topic_exception,
    InvalidTopic: ErrorCode.invalid_topic_exception,
    InvalidTopicConfig: ErrorCode.invalid_config,
    InvalidSettings: ErrorCode.invalid_config,
    InvalidQuorum: ErrorCode.invalid_replication_factor,
    InvalidValue: ErrorCode.invalid_request,
    AccessDenied: ErrorCode.topic_authorization_failed,
    MetadataDenied: ErrorCode.topic_authorization_failed,
    TooManyPending: ErrorCode.kafka_storage_error,
    ManifestTooLarge: ErrorCode.kafka_storage_error,
    MetadataUnavailable: ErrorCode.kafka_storage_error,
    NotEnoughBookies: ErrorCode.kafka_storage_error,
    BookieUnavailable: ErrorCode.kafka_storage_error,
    EntryUnavailable: ErrorCode.kafka_storage_error,
    StorageError: ErrorCode.kafka_storage_error,
}


def kafka_code_of(error: LogError) -> ErrorCode:
    """Return Kafka's code for *error*: that of its class, or of the nearest class above it."""
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return code
    return ErrorCode.kafka_storage_error if error.retryable else ErrorCode.unknown_server_error


def refusal_of(error: LogError) -> KafkaRefusal:
    """Return *error* as a client of Kafka is told of it."""
    return KafkaRefusal(kafka_code_of(error), str(error))
