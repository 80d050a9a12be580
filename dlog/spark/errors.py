"""Errors of the Spark connector, which name options as users write them.

CallerError
|- InvalidOption        an option or offset given by the user cannot be used
|- InvalidSchema        a schema that was declared for a read is not that of records
|- BadRecord            the payload of a record is none of the schema it is read with (FAILFAST)
|- InvalidColumns       a write has columns that records have not, or of other types
|- InvalidRow           a row that cannot become a record: no value, a txid missing
|- TxidsUnordered       txids of a write decrease
|- BatchSuperseded      a batch comes after a later one of its query: its checkpoint was set back
`- TooManyRowsUnstaged  too much for a log that was not known in advance
RemoteError
|- StreamBroken         the log no longer continues where the stream stopped
|  |- LogReplaced       it was deleted and re-created under the same name
|  |- LogDeleted        it was deleted
|  `- RecordsTrimmed    it was truncated beyond the stream's position
`- LostOwnership
   `- StagedBefore      a batch was staged before the log was taken over
"""

from typing import Final

from dlog.errors import LostOwnership
from ledger.errors import AccessDenied, CallerError, LogError, RemoteError

TLS: Final = ("tls", "tlsCa", "tlsCert", "tlsKey", "tlsIdentity")
"""Of both: the settings of the same names."""
SOURCE: Final = (
    "logs",
    "logsPattern",
    "path",
    "uri",
    *TLS,
    "startingOffsets",
    "startingTimestamp",
    "startingTxid",
    "endingOffsets",
    "endingTimestamp",
    "endingTxid",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minRecordsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxPartitions",
    "minTaskRecords",
    "maxBytesPerTask",
    "failOnDataLoss",
    "consumer",
    "pushdown",
    "timestampsAscend",
    "table",
    "pollMs",
    "includeHeaders",
    "columns",
    "payload",
    "schemaFile",
    "schemaMessage",
    "mode",
)
SINK: Final = (
    "path",
    "log",
    "logs",
    "uri",
    *TLS,
    "inlineBytesMax",
    "createLogs",
    "writeId",
    "writeNumber",
    "payload",
    "schemaFile",
    "schemaMessage",
    "schemaHeader",
)
_WRITTEN: Final = {name.lower(): name for name in (*SOURCE, *SINK)}
_GO_ON = "to continue without them, start the query with the option failOnDataLoss=false"


def as_written(option: str) -> str:
    """Return *option* as the documents write it; one that does not exist, as it was given."""
    return _WRITTEN.get(option.lower(), option)


def may_pass(error: LogError) -> bool:
    """Return whether what may be repeated at will shall be, after *error*. Of an append that was
    denied the outcome may be unknown, but not what another one's would be."""
    denied = isinstance(error, AccessDenied)
    return error.retryable or (error.outcome_unknown and not denied)


class InvalidOption(CallerError):
    def __init__(self, option: str, value: str, reason: str) -> None:
        self.option, self.value, self.reason = as_written(option), value, reason
        super().__init__(f"option {self.option}={value!r} of format dlog: {reason}")


class StreamBroken(RemoteError):
    """Going on skips records, so the query fails unless `failOnDataLoss` is false."""

    log: str
    next_offset: int | None = None
    """The first record that was not read and is gone."""
    records_gone: int | None = None
    """How many there were; None: it is not known."""


class LogReplaced(StreamBroken):
    def __init__(
        self, log: str, expected: str, found: str, *, next_offset: int | None = None
    ) -> None:
        super().__init__(
            f"log {log!r} was deleted and re-created (incarnation {expected} became {found}): the "
            "checkpoint points into a log that is gone; start the query with a new checkpoint, or "
            "with the option failOnDataLoss=false to continue with the new log's first record"
        )
        self.log, self.expected, self.found = log, expected, found
        self.next_offset = next_offset


class LogDeleted(StreamBroken):
    def __init__(self, log: str, next_offset: int) -> None:
        super().__init__(
            f"log {log!r} was deleted; the stream has read it up to offset {next_offset}, and what "
            f"came after is lost to it: {_GO_ON}"
        )
        self.log, self.next_offset = log, next_offset


class RecordsTrimmed(StreamBroken):
    def __init__(self, log: str, next_offset: int, first_offset: int) -> None:
        gone = first_offset - next_offset
        super().__init__(
            f"log {log!r} was truncated before offset {first_offset}, but the stream has read only "
            f"up to {next_offset}: {gone} records are lost to it; {_GO_ON}"
        )
        self.log, self.next_offset, self.first_offset = log, next_offset, first_offset
        self.records_gone = gone


class InvalidSchema(CallerError):
    """Nothing is read by another schema than that of records, or a part of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"schema of a read of format dlog: {reason}")
        self.reason = reason


class BadRecord(CallerError):
    """The task fails, and fails again."""

    def __init__(self, log: str, offset: int, reason: str) -> None:
        super().__init__(
            f"log {log!r}: the payload of the record at offset {offset} is none of the schema: "
            f"{reason}. mode=PERMISSIVE keeps such records as rows of nulls, DROPMALFORMED leaves "
            "them out"
        )
        self.log, self.offset, self.reason = log, offset, reason


class InvalidColumns(CallerError):
    """Rows of a write cannot become records."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"columns of a write to format dlog: {reason}")
        self.reason = reason


class InvalidRow(CallerError):
    """The batch fails, and fails again: the query has to leave such rows out."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"a row that was written to format dlog: column {column!r} {reason}")
        self.column, self.reason = column, reason


class TxidsUnordered(CallerError):
    """Nothing of the batch was written."""

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(
            f"log {log!r}: txids must not decrease over a batch and from one to the next, and "
            f"{reason}. Partitions are written one after the other, in their order: use "
            "repartitionByRange or coalesce(1), and sortWithinPartitions('txid')"
        )
        self.log, self.reason = log, reason


class BatchSuperseded(CallerError):
    """Nothing of the batch was written by this attempt."""

    def __init__(self, log: str, number: int, last: int, *, write_id: str | None = None) -> None:
        what = "batch" if write_id is None else "writeNumber"
        whose = "the same query" if write_id is None else f"writeId {write_id!r}"
        another = "" if write_id is None else " and a new writeId"
        super().__init__(
            f"log {log!r}: {what} {number} comes after {what} {last} of {whose}, which is in the "
            "log already, and only the last one can be repeated. The checkpoint was set back "
            "(restored from a backup, or copied), so the rows in the log may differ from these. "
            f"Start the query with the newest checkpoint. If that is lost, use a new one{another}, "
            "and start its source after what the log already has: a new query writes everything "
            "that it reads"
        )
        self.log, self.number, self.last = log, number, last


class TooManyRowsUnstaged(CallerError):
    """Nothing of the batch was written."""

    def __init__(self, log: str, bytes_max: int) -> None:
        super().__init__(
            f"log {log!r}: more than {bytes_max} bytes of one task are for a log that was not "
            "known when the batch was planned; name it in option logs='a,b', or write more "
            "partitions"
        )
        self.log, self.bytes_max = log, bytes_max


class StagedBefore(LostOwnership):
    """The run goes on to have the log; only this attempt of the batch is lost."""

    def __init__(self, log: str) -> None:
        super().__init__(
            log,
            "tasks wrote this batch before the log was taken over here, and what they wrote "
            "is no longer valid; restart the query, which writes the batch again",
        )
