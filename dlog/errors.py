"""Every error of the log layer, on top of the tree in `ledger.errors`.

    LogError
    |- CallerError
    |  |- InvalidName             the name of a log breaks a rule
    |  |- InvalidSettings         settings of a log contradict each other
    |  |- InvalidPosition         this position cannot exist in this log
    |  |- RecordTooLarge
    |  |- InvalidHeaders          too many, or a name that cannot be stored; also a ValueError
    |  |- BatchTooLarge           more than one append_many may append
    |  |- CodecMissing            the library of a codec is not installed
    |  |- EncryptionMissing       the library of encryption is not installed
    |  |- InvalidKeys             a file of keys, or the command that provides them, cannot be used
    |  |- KeyMissing              this process lacks the key of a log, or has another one
    |  |- AppendRejected          the record was not sent; the log continues without it
    |  |  |- TxidOutOfOrder
    |  |  `- UnexpectedOffset     a compare-and-append lost
    |  |- ArchiveMissing          the library of object storage is not installed
    |  |- SchemaLibraryMissing    a library that reads payloads by a schema is not installed
    |  |- InvalidLogSchema        a schema of a log cannot be used, or a row is not of it
    |  |- IncompatibleSchema      a schema cannot follow those of the log's records
    |  |- TooManySchemas          of one log
    |  |- UnitSuperseded          a sink's unit comes after a later one of its origin
    |  |- TooManyLogs             for one reader of many
    |  |- TooManyConsumers        of one log
    |  |- LogClosed               appended after close
    |  |- AlreadyPromoted         a standby leads, or stands for election
    |  |- NotPromoted             a standby does not lead
    |  |- InvalidResult           a command was applied, but its result cannot be kept
    |  |- RequestForgotten        the request may have been done; its result is not kept any more
    |  |- ApplyFailed             a state machine raised an error; the replica stopped there
    |  |- SnapshotsUnusable       the directory of snapshots cannot be used
    |  |- UsedAfterFork           the handle belongs to the parent process
    |  `- ForkedAfterConnecting   no connections in the child of a process that had some
    |- RemoteError
    |  |- LostOwnership           another process writes this log now; nothing was sent
    |  |- AppendOutcomeUnknown    sent, and may or may not be kept; the next open shows which
    |  |- CloseTimedOut           closed before all appends were confirmed
    |  |- AppendFailed            not sent: the writer failed before; reopen the log
    |  |- RollPostponed           the roll is not done yet; it continues in the background
    |  |- EpochChanged            another process took the log over; nothing was changed
    |  |- TakeoverFailed          another process opened the log first each time
    |  |- LedByGateway            a gateway for Kafka's clients leads the log; nothing was changed
    |  |- NoSuchLog / LogExists / LogSealed
    |  |- Trimmed                 the position is below the trim point
    |  |- NotThereYet             a bounded read found no more records in time
    |  |- ObjectStorageUnavailable  it does not answer, or too slowly
    |  |- ObjectStorageRefused    it answers, and refuses: rights, bucket, configuration
    |  |- ObjectsOwnedElsewhere   another copy of the namespace may delete a log's objects
    |  |- KeyCommandFailed        the command that provides the keys failed
    |  |- BarrierNotReached       it was not known in time whether the last records are committed
    |  |- NotLeader               a command was submitted to a replica that does not lead
    |  |- CommandOutcomeUnknown   a command may or may not be in the log; the log will tell
    |  |- NotCaughtUp             a replica had not applied in time what a read must see
    |  |- StateNotRestored        a replica tries an earlier snapshot, as one was damaged
    |  |- NoSuchConsumer
    |  |- NoSuchSchema            the log has no schema, or not that version
    |  |- ConsumerBusy            another process has it open exclusively
    |  |- ConsumerFenced          another process opened it exclusively since, or reset it
    |  `- ManifestTooLarge        no more segments until the log is truncated; appends continue
    `- StorageError
       |- DamagedBatch            bytes are no record batch
       |- BatchEncrypted          it has to be opened before it is decoded
       |- BatchTooNew             written by a newer dlog: upgrade
       |- ObjectStorageUnsupported  the keys of a segment in object storage cannot be rewrapped
       |- MalformedObject         bytes are no object with a segment
       |- DamagedObject           an object with a segment of a log is not what was written
       |- ObjectLost              an object with a segment of a log does not exist
       |- DamagedCommand          a record of a replicated state machine is no command
       |- CommandTooNew           written by a newer version of the application, or of dlog
       |- StateDiverged           a replica has another state than its leader had
       |- DamagedSnapshot         bytes are no snapshot of a replicated state machine
       |- SnapshotAhead           a snapshot has records that its log does not have
       |- SnapshotTooNew          written by a newer version of the application, or of dlog
       `- DamagedLog              segments or batches do not join

`LostOwnership`, `AppendOutcomeUnknown` and `AppendFailed` are what an append can end with once
the log was open; the first and the last say that the record is certainly not in the log.
"""

from collections.abc import Sequence

from ledger.errors import CallerError, HandleClosed, InvalidValue, RemoteError, StorageError


def text_of(error: BaseException) -> str:
    """Return the text of an application's *error*, which may fail to make one, or its class."""
    try:
        return encodable(str(error)) or type(error).__name__
    except Exception as failure:  # noqa: BLE001 - its class is named all the same
        return f"(its text raises {type(failure).__name__})"


def encodable(text: str) -> str:
    """Return *text* as UTF-8 can have it: half a surrogate pair, as in a file name that is not
    UTF-8, becomes "?"."""
    return text.encode(errors="replace").decode()


class InvalidName(CallerError):
    def __init__(self, name: object, reason: str) -> None:
        super().__init__(
            f"log name {name!r}: {reason}. Use 1 to 255 bytes of printable text; "
            "parts between slashes are not empty and do not begin with a dot."
        )
        self.name, self.reason = name, reason


class InvalidSettings(InvalidValue):
    def __init__(self, setting: str, value: object, reason: str) -> None:
        super().__init__(setting, value, reason)
        self.setting = setting


class InvalidPosition(CallerError):
    def __init__(self, log: str, position: object, reason: str) -> None:
        super().__init__(f"log {log!r}: no position {position!r}: {reason}")
        self.log, self.position, self.reason = log, position, reason


class ForkedAfterConnecting(CallerError):
    def __init__(self) -> None:
        super().__init__(
            "this process cannot connect: it was forked from one that had already connected, whose "
            "threads may have left locks held. Fork before the first log is opened, or spawn "
            "the process (multiprocessing: the start method spawn or forkserver)"
        )


class RecordTooLarge(CallerError):
    def __init__(self, log: str, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(
            f"log {log!r}: record of {size_bytes} bytes is over the limit of {size_bytes_max}; "
            "split it, or create the log with a larger record_bytes_max"
        )
        self.log, self.size_bytes, self.size_bytes_max = log, size_bytes, size_bytes_max


class InvalidHeaders(CallerError, ValueError):
    """Nothing of the call was appended. A ValueError too, as for other values out of range."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"headers of a record: {reason}")
        self.reason = reason


class BatchTooLarge(CallerError):
    def __init__(self, log: str, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(
            f"log {log!r}: {size_bytes} bytes of records in one call are over the limit of "
            f"{size_bytes_max}; append them in several calls"
        )
        self.log, self.size_bytes, self.size_bytes_max = log, size_bytes, size_bytes_max


class CodecMissing(CallerError):
    def __init__(self, codec: str, package: str) -> None:
        super().__init__(
            f"codec {codec} needs the package {package}, which cannot be imported here; "
            f"install it (pip install {package}), or create the log with another codec"
        )
        self.codec, self.package = codec, package


class EncryptionMissing(CallerError):
    def __init__(self) -> None:
        super().__init__(
            "an encrypted log needs the package cryptography, which cannot be imported here; "
            "install it: pip install 'dlog-ledgers[encryption]'"
        )


class InvalidKeys(CallerError):
    """Names the place, never the keys."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"keys for encryption: {where}: {reason}")
        self.where, self.reason = where, reason


class KeyMissing(CallerError):
    """A log can be neither read nor written here; processes that have the key can."""

    def __init__(self, key: str, reason: str = "this process does not have it") -> None:
        super().__init__(
            f"the key {key!r} is needed to read or write an encrypted log, and {reason}: set "
            "DLOG_KEY_FILE to the file that has it, or DLOG_KEY_COMMAND to a command that uses it"
        )
        self.key, self.reason = key, reason


class AppendRejected(CallerError):
    """The record was refused before it was sent; the log is unchanged and still open."""


class TxidOutOfOrder(AppendRejected):
    def __init__(self, log: str, txid: int, last_txid: int) -> None:
        reason = (
            f"comes after {last_txid}; txids must not decrease"
            if txid < last_txid
            else "is out of range; use numbers above -2**63 and below 2**63"
        )
        super().__init__(f"log {log!r}: txid {txid} {reason}")
        self.log, self.txid, self.last_txid = log, txid, last_txid


class UnitSuperseded(CallerError):
    """Nothing of this attempt was written. Whether the log holds what the unit was when it was
    committed, or nothing of it, is not known: a log keeps the last number of an origin alone."""

    def __init__(self, log: str, number: int, last: int) -> None:
        super().__init__(
            f"log {log!r}: unit {number} comes after unit {last} of the same origin, and only the "
            f"last one may be repeated; number units from {last + 1} on, or commit as a new origin"
        )
        self.log, self.number, self.last = log, number, last


class UnexpectedOffset(AppendRejected):
    def __init__(self, log: str, expected_offset: int, next_offset: int) -> None:
        super().__init__(
            f"log {log!r}: the next record gets offset {next_offset}, not {expected_offset}; "
            "read what was appended since and decide again"
        )
        self.log, self.expected_offset, self.next_offset = log, expected_offset, next_offset


class TooManyLogs(CallerError):
    def __init__(self, logs_max: int) -> None:
        super().__init__(f"one reader reads at most {logs_max} logs; use several readers")
        self.logs_max = logs_max


class TooManyConsumers(CallerError):
    def __init__(self, log: str, consumers_max: int) -> None:
        super().__init__(
            f"log {log!r} has {consumers_max} consumers, which is the maximum; "
            "delete those that are no longer used"
        )
        self.log, self.consumers_max = log, consumers_max


class LogClosed(HandleClosed):
    def __init__(self, log: str) -> None:
        super().__init__(f"log {log!r}")
        self.log = log


class AlreadyPromoted(CallerError):
    def __init__(self, log: str) -> None:
        super().__init__(
            f"log {log!r}: this standby leads already, or is being promoted; resign first"
        )
        self.log = log


class NotPromoted(CallerError):
    def __init__(self, log: str) -> None:
        super().__init__(f"log {log!r}: this standby does not lead; promote it first")
        self.log = log


class InvalidResult(CallerError):
    """The command was applied, on every replica; it has no result."""

    def __init__(self, result_text: str, reason: str) -> None:
        """*result_text*: its ``repr``, of which the beginning is kept; empty for a request that was
        done before, as replicas keep neither the text nor the reason."""
        self.result_text, self.reason = result_text[:200], reason[:200]
        super().__init__(
            "the command was applied, but its result"
            f"{f' {self.result_text}' if result_text else ''} cannot be kept: {self.reason}. "
            "Return bytes or what JSON can say (None, numbers, text, lists, dictionaries with keys "
            "of text) from apply"
        )


class RequestForgotten(CallerError):
    """Nothing was done now. Whether it was done before is not known any more."""

    outcome_unknown = True

    def __init__(self, log: str, client: str, number: int, floor: int) -> None:
        super().__init__(
            f"log {log!r}: request {number} of client {client!r} was not applied now: results are "
            f"kept only for numbers above {floor}, so it may have been applied before. Read the "
            "state, and give new requests larger numbers"
        )
        self.log, self.client, self.number, self.floor = log, client, number, floor


class ApplyFailed(CallerError):
    """Its `__cause__` is what the state machine raised. All replicas stop at that record.

    The command is in the log, and takes effect once the state machine was corrected."""

    outcome_unknown = True

    def __init__(self, log: str, offset: int, error: BaseException) -> None:
        super().__init__(
            f"log {log!r}: the state machine raised an error at offset {offset}: "
            f"{type(error).__name__}: {text_of(error)}. This replica stopped before that record, "
            "which takes effect when it is opened again: correct the state machine on every "
            "replica first"
        )
        self.log, self.offset, self.error = log, offset, error


class SnapshotsUnusable(CallerError):
    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(f"snapshots cannot be kept at {uri!r}: {reason}")
        self.uri, self.reason = uri, reason


class UsedAfterFork(CallerError):
    def __init__(self, log: str | None = None) -> None:
        what = "this handle" if log is None else f"log {log!r}"
        super().__init__(
            f"{what} was opened before this process was forked, and belongs to its parent; use it "
            "there, and spawn processes that use logs of their own instead of forking them"
        )
        self.log = log


class LostOwnership(RemoteError):
    def __init__(self, log: str, reason: str = "another process took it over") -> None:
        super().__init__(
            f"log {log!r} is no longer written here: {reason}. Nothing was sent; "
            "open the log again if this process should write it"
        )
        self.log, self.reason = log, reason


class AppendOutcomeUnknown(RemoteError):
    outcome_unknown = True

    def __init__(self, log: str, offset: int, reason: str) -> None:
        super().__init__(
            f"log {log!r}: the record sent for offset {offset} may or may not be kept: {reason}. "
            "Open the log and compare last_offset or last_txid, or read it"
        )
        self.log, self.offset, self.reason = log, offset, reason


class CloseTimedOut(RemoteError):
    """Each append's future has its own outcome."""

    outcome_unknown = True

    def __init__(self, log: str, records: int, timeout_s: float) -> None:
        super().__init__(
            f"log {log!r}: {records} records were not confirmed within {timeout_s:g} s of closing; "
            "open the log and compare last_offset or last_txid"
        )
        self.log, self.records, self.timeout_s = log, records, timeout_s


class RollPostponed(RemoteError):
    """The roll is not done yet; it continues in the background, and so do appends."""

    retryable = True
    outcome_unknown = True

    def __init__(self, log: str, timeout_s: float, reason: str) -> None:
        super().__init__(
            f"log {log!r}: the roll is not done after {timeout_s:g} s: {reason}. "
            "It continues in the background, and so do appends"
        )
        self.log, self.timeout_s, self.reason = log, timeout_s, reason


class AppendFailed(RemoteError):
    """The append was not sent; the log itself is whole."""

    retryable = True

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(
            f"log {log!r}: this writer failed earlier: {reason}. Nothing was sent; "
            "open the log again to continue"
        )
        self.log, self.reason = log, reason


class EpochChanged(RemoteError):
    """A conditional open lost: the log's writer is unaffected."""

    def __init__(self, log: str, expected_epoch: int, epoch: int, owner: str = "") -> None:
        by = f" by {owner}" if owner else ""
        super().__init__(
            f"log {log!r} was taken over{by}: its epoch is {epoch}, not {expected_epoch}; "
            "read what was appended since and decide again whether to open it"
        )
        self.log, self.expected_epoch, self.epoch = log, expected_epoch, epoch
        self.owner = owner


class TakeoverFailed(RemoteError):
    retryable = True

    def __init__(self, log: str, attempts: int) -> None:
        super().__init__(
            f"log {log!r} could not be opened for writing: in each of {attempts} attempts another "
            "process changed it first; elect a leader if several processes want to write it"
        )
        self.log, self.attempts = log, attempts


class LedByGateway(RemoteError):
    """A gateway for Kafka's clients leads the log; nobody was disturbed."""

    retryable = True

    def __init__(self, log: str, gateway: str) -> None:
        super().__init__(
            f"log {log!r} is led by a gateway for Kafka's clients, and the one at {gateway} lives; "
            "produce through it, or stop the gateways, or open the log with take_over=True, which "
            "a gateway answers by taking it back with its next request"
        )
        self.log, self.gateway = log, gateway


class NoSuchLog(RemoteError):
    def __init__(self, log: str, reason: str = "it was never created, or was deleted") -> None:
        super().__init__(f"there is no log {log!r}: {reason}")
        self.log, self.reason = log, reason


class LogExists(RemoteError):
    def __init__(self, log: str) -> None:
        super().__init__(f"log {log!r} exists already; open it, or choose another name")
        self.log = log


class LogSealed(RemoteError):
    def __init__(self, log: str) -> None:
        super().__init__(f"log {log!r} is sealed, permanently; append to another log")
        self.log = log


class Trimmed(RemoteError):
    def __init__(self, log: str, position: object, first_offset: int) -> None:
        super().__init__(
            f"log {log!r}: position {position} was trimmed; "
            f"the first record now has offset {first_offset}"
        )
        self.log, self.position, self.first_offset = log, position, first_offset


class OffsetOutOfRange(RemoteError):
    """A start beyond the end: of another log, or from before records were lost."""

    def __init__(self, log: str, offset: int, first_offset: int, end_offset: int) -> None:
        super().__init__(
            f"log {log!r}: offset {int(offset)} is beyond its end; offsets {first_offset} to "
            f"{end_offset} can be read from. Start at one of them, or give beyond_end='wait' to "
            "wait for records that are not appended yet"
        )
        self.log, self.offset = log, int(offset)
        self.first_offset, self.end_offset = first_offset, end_offset


class LogRecreated(RemoteError):
    """A position was stored of another log than the one that has its name now."""

    def __init__(self, log: str, position: object, incarnation: str) -> None:
        super().__init__(
            f"log {log!r}: position {position} is of another log that had this name; this one is "
            f"incarnation {incarnation}. The other was deleted or renamed: read it under its new "
            "name, or start over with 'start'"
        )
        self.log, self.position, self.incarnation = log, position, incarnation


class NotThereYet(RemoteError):
    """A bounded read reached a record that no bookie returns as committed."""

    retryable = True

    def __init__(self, log: str, offset: int, waited_s: float) -> None:
        super().__init__(
            f"log {log!r}: no committed record with offset {offset} was found for {waited_s:g} s; "
            "check that its bookies run, then read again"
        )
        self.log, self.offset, self.waited_s = log, offset, waited_s


class NoSuchConsumer(RemoteError):
    def __init__(self, log: str, consumer: str) -> None:
        super().__init__(
            f"log {log!r} has no consumer {consumer!r}: it was never created, or was deleted"
        )
        self.log, self.consumer = log, consumer


class ConsumerBusy(RemoteError):
    retryable = True

    def __init__(self, log: str, consumer: str, owner: str) -> None:
        super().__init__(
            f"consumer {consumer!r} of log {log!r} is open exclusively by {owner or 'another'}; "
            "wait until that process closes it or its session ends"
        )
        self.log, self.consumer, self.owner = log, consumer, owner


class ConsumerFenced(RemoteError):
    """Nothing was committed; what was processed since the last commit will be read again."""

    def __init__(self, consumer: str, owner: str) -> None:
        super().__init__(
            f"consumer {consumer!r} was opened exclusively or reset by {owner or 'another'} since "
            "it was opened here; open it again to continue from its current position"
        )
        self.consumer, self.owner = consumer, owner


class BarrierNotReached(RemoteError):
    """Bookies hold a record that may have been acknowledged, and none confirms it."""

    retryable = True

    def __init__(self, log: str, place: object, waited_s: float) -> None:
        super().__init__(
            f"log {log!r}: it was not known within {waited_s:g} s whether the records up to entry "
            f"{place} are committed; its writer is slow or dead. Try again, or open the log for "
            "writing, which decides it"
        )
        self.log, self.place, self.waited_s = log, place, waited_s


class NotLeader(RemoteError):
    """The command was certainly not applied, and never will be."""

    retryable = True

    def __init__(self, log: str, leader: str, address: str, epoch: int, reason: str = "") -> None:
        """*reason*: why it could not be forwarded."""
        known = f"{leader}{f' at {address}' if address else ''} led last, with epoch {epoch}"
        super().__init__(
            f"log {log!r}: this replica does not lead, and the command was not applied; "
            f"{known if leader else 'who leads is not known here yet'}"
            f"{f', and {reason}' if reason else ''}. Submit it to the leader"
        )
        self.log, self.leader, self.address, self.epoch = log, leader, address, epoch


class CommandOutcomeUnknown(RemoteError):
    """A command with a `request_id` can be submitted again, to any leader: it has one effect."""

    retryable = True
    outcome_unknown = True

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(
            f"log {log!r}: a command may or may not be in the log: {reason}. Submit it again with "
            "the same request_id; if it has none, read the state first"
        )
        self.log, self.reason = log, reason


class ForwardRefused(RemoteError):
    """The leader takes no such command from this replica; it was not applied by this call."""

    def __init__(self, log: str, leader: str, reason: str) -> None:
        super().__init__(
            f"log {log!r}: leader {leader} refused a forwarded command: {reason}. Correct that, or "
            "submit it to the leader itself"
        )
        self.log, self.leader, self.reason = log, leader, reason


class SnapshotRequestFailed(RemoteError):
    """A running replica did not write the snapshot that was requested."""

    retryable = True

    def __init__(self, log: str, replica: str, reason: str) -> None:
        super().__init__(
            f"log {log!r}: replica {replica} did not write the snapshot: {reason}. Correct that, "
            "or request it of another replica ('dlog replica list' lists them)"
        )
        self.log, self.replica, self.reason = log, replica, reason


class NotCaughtUp(RemoteError):
    retryable = True

    def __init__(self, log: str, applied: int, waited_s: float) -> None:
        super().__init__(
            f"log {log!r}: within {waited_s:g} s this replica did not apply everything that a "
            f"linearizable read must see; it has applied the records below offset {applied}. Try "
            'again, read from another replica, or use consistency="local"'
        )
        self.log, self.applied, self.waited_s = log, applied, waited_s


class StateNotRestored(RemoteError):
    """A snapshot was damaged while it was restored. The one before it is restored instead, or the
    replica stops."""

    retryable = True

    def __init__(self, log: str) -> None:
        super().__init__(
            f"log {log!r}: this replica has no whole state now: the snapshot that it restored "
            "was damaged, and the one before is tried. Try again, or use another replica"
        )
        self.log = log


class KeyCommandFailed(RemoteError):
    """Nothing was read or written. Neither its input nor its output is shown."""

    retryable = True

    def __init__(self, command: str, doing: str, key: str, reason: str) -> None:
        super().__init__(
            f"the command of DLOG_KEY_COMMAND ({command}) did not {doing} a data key with the key "
            f"{key!r}: {reason}; its messages are in the standard error of this process"
        )
        self.command, self.doing, self.key, self.reason = command, doing, key, reason


class ManifestTooLarge(RemoteError):
    """No segment can be added until some were truncated; the log's writer continues."""

    retryable = True

    def __init__(self, log: str, size_bytes: int, size_bytes_max: int, segments: int) -> None:
        super().__init__(
            f"log {log!r}: its manifest of {segments} segments has {size_bytes} bytes, the limit "
            f"is {size_bytes_max}; truncate the log, or roll it less often"
        )
        self.log, self.size_bytes, self.size_bytes_max = log, size_bytes, size_bytes_max
        self.segments = segments


class DamagedBatch(StorageError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"not a record batch: {reason}")
        self.reason = reason


class BatchEncrypted(StorageError):
    def __init__(self) -> None:
        super().__init__(
            "a record batch is encrypted; read it through its log, which knows its key"
        )


class BatchTooNew(StorageError):
    def __init__(self, version: int, known: int) -> None:
        super().__init__(
            f"a record batch of format version {version} was written by a newer dlog; this one "
            f"reads versions up to {known}: upgrade it (readers before writers)"
        )
        self.version, self.known = version, known


class ObjectStorageUnsupported(StorageError):
    """Nothing was changed."""

    def __init__(self, log: str, what: str, stored: str, action: str) -> None:
        super().__init__(
            f"log {log!r}: {what} is in object storage, as {stored!r}, and dlog cannot {action} "
            "objects"
        )
        self.log, self.object = log, stored


class MalformedObject(StorageError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"not an object with a segment of a log: {reason}")
        self.reason = reason


class DamagedObject(StorageError):
    """The records of one segment cannot be read, or not all of them."""

    def __init__(self, log: str, offsets: str, stored: str, reason: str) -> None:
        super().__init__(
            f"log {log!r}: offsets {offsets} are in the object {stored}, which is damaged: "
            f"{reason}; restore the object from a version or a backup of the bucket"
        )
        self.log, self.offsets, self.object, self.reason = log, offsets, stored, reason


class ObjectLost(StorageError):
    """The records of one segment cannot be read."""

    def __init__(self, log: str, offsets: str, stored: str) -> None:
        super().__init__(
            f"log {log!r}: offsets {offsets} are in the object {stored}, which does not exist; "
            "restore the object from a version or a backup of the bucket"
        )
        self.log, self.offsets, self.object = log, offsets, stored


class ObjectStorageUnavailable(RemoteError):
    retryable = True
    outcome_unknown = True

    def __init__(self, storage: str, operation: str, reason: str) -> None:
        super().__init__(f"object storage {storage}: {operation} got no answer: {reason}")
        self.storage, self.operation, self.reason = storage, operation, reason


class ObjectStorageRefused(RemoteError):
    def __init__(self, storage: str, operation: str, reason: str) -> None:
        super().__init__(
            f"object storage {storage}: {operation} was refused: {reason}; check the bucket's "
            "name, the rights of this process and its credentials (docs/archive.md)"
        )
        self.storage, self.operation, self.reason = storage, operation, reason


class ObjectsOwnedElsewhere(RemoteError):
    """Nothing was deleted or archived. Records are read as before."""

    def __init__(self, log: str, storage: str, places: tuple[str, ...]) -> None:
        owner = f"a namespace at {', '.join(places)}" if places else "no namespace, any more"
        super().__init__(
            f"log {log!r}: its objects in {storage} belong to {owner}, of which this one is a copy "
            "or an older state; nothing was changed. If this is the one to keep, stop the other "
            f"one, then: dlog log archive {log} --claim"
        )
        self.log, self.storage, self.places = log, storage, places


class TableBehind(StorageError):
    """The table of a log lacks records that the log has not any more."""

    def __init__(self, log: str, end: int, first: int) -> None:
        super().__init__(
            f"log {log!r}: its table ends at offset {end}, and the log begins at {first}: the "
            "records between were truncated before they were in the table. Let retention wait for "
            f"longer than archiving; 'dlog table rebuild {log}' begins the table again there"
        )
        self.log, self.end, self.first_offset = log, end, first


class TableDiverged(StorageError):
    """The table has records of another copy of the namespace."""

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(
            f"log {log!r}: its table is of another copy or another state of this namespace: "
            f"{reason}. If this is the one to keep: dlog table rebuild {log}"
        )
        self.log, self.reason = log, reason


class TableFull(StorageError):
    def __init__(self, log: str, files: int) -> None:
        super().__init__(
            f"log {log!r}: its table has {files} files, and no room for more; 'dlog table rebuild "
            f"{log}' writes it again in larger ones"
        )
        self.log, self.files = log, files


class NoSuchTable(StorageError):
    def __init__(self, log: str) -> None:
        super().__init__(
            f"log {log!r} has no table, or none yet: set archive_table to parquet, and run the "
            "archiver ('dlog log archive')"
        )
        self.log = log


class DamagedTable(StorageError):
    """Rows of a table cannot be read; the records are in the log, unless it was truncated."""

    def __init__(self, log: str, where: str, reason: str) -> None:
        super().__init__(
            f"log {log!r}: {where} of its table is lost or damaged: {reason}; 'dlog table rebuild "
            f"{log}' writes the table again. Without the option 'table' the log itself is read"
        )
        self.log, self.where, self.reason = log, where, reason


class TableMissing(CallerError):
    def __init__(self, log: str) -> None:
        super().__init__(
            f"the table of log {log!r} needs a library that is not installed: "
            "pip install 'dlog-ledgers[table]'"
        )
        self.log = log


class CopiesSuperseded(RemoteError):
    """What was restored before stays; of the segment that was under way nothing is left."""

    retryable = True

    def __init__(self, log: str) -> None:
        super().__init__(
            f"log {log!r}: another process began to restore segments of it, and this one stopped; "
            "once the other one is done, run it again for what is missing"
        )
        self.log = log


class TooManyCopies(CallerError):
    def __init__(self, log: str, segments: int, copies: int, most: int) -> None:
        super().__init__(
            f"log {log!r}: {segments} segments are to be restored, {copies} are already, and a log "
            f"has at most {most} local copies; choose fewer offsets, or let copies go (--keep 0)"
        )
        self.log, self.segments, self.copies, self.most = log, segments, copies, most


class ArchiveMissing(CallerError):
    def __init__(self, storage: str) -> None:
        super().__init__(
            f"object storage {storage} needs a library that is not installed: "
            "pip install 'dlog-ledgers[archive]'"
        )
        self.storage = storage


class SchemaLibraryMissing(CallerError):
    def __init__(self, package: str) -> None:
        super().__init__(
            f"schemas of logs need {package}, which is not installed: "
            "pip install 'dlog-ledgers[schema]'"
        )
        self.package = package


class InvalidLogSchema(CallerError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"schema of a log: {reason}")
        self.reason = reason


class IncompatibleSchema(CallerError):
    """Nothing was changed."""

    def __init__(self, log: str, version: int, problems: Sequence[str]) -> None:
        super().__init__(
            f"log {log!r}: the schema cannot follow version {version}, with which records are in "
            f"the log: {'; '.join(problems)}"
        )
        self.log, self.version, self.problems = log, version, tuple(problems)


class TooManySchemas(CallerError):
    """Nothing was changed."""

    def __init__(self, log: str, versions_max: int, bytes_max: int) -> None:
        super().__init__(
            f"log {log!r}: a log has at most {versions_max} versions of its schema, {bytes_max} "
            "bytes of definitions in all; clear those that no record names any more "
            "(dlog log schema clear --before VERSION)"
        )
        self.log = log


class NoSuchSchema(RemoteError):
    def __init__(self, log: str, version: int | None = None) -> None:
        what = "no schema" if version is None else f"no version {version} of its schema"
        super().__init__(f"log {log!r} has {what}; 'dlog log schema list' has those that it has")
        self.log, self.version = log, version


class DamagedCommand(StorageError):
    def __init__(self, log: str, offset: int, reason: str) -> None:
        super().__init__(
            f"log {log!r}: the record at offset {offset} is not a command of a replicated state "
            f"machine: {reason}. Only replicas may append to such a log"
        )
        self.log, self.offset, self.reason = log, offset, reason


class CommandTooNew(StorageError):
    def __init__(self, log: str, offset: int, what: str, version: int, known: int) -> None:
        super().__init__(
            f"log {log!r}: the command at offset {offset} has {what} version {version}; this "
            f"replica knows versions up to {known}. It stopped there: upgrade it, and open it again"
        )
        self.log, self.offset, self.what = log, offset, what
        self.version, self.known = version, known


class StateDiverged(StorageError):
    """The state machine is not deterministic, or differs between the replicas."""

    def __init__(self, log: str, offset: int) -> None:
        super().__init__(
            f"log {log!r}: with all records below offset {offset} applied, the state of "
            "this replica differs from the leader's. It stopped: find what in the state machine "
            "depends on more than its commands (dlog.testing.check_deterministic), and open the "
            "replica with a new state machine, without its snapshots"
        )
        self.log, self.offset = log, offset


class DamagedSnapshot(StorageError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"not a snapshot of a replicated state machine: {reason}")
        self.reason = reason


class SnapshotAhead(StorageError):
    """The log lost its end, as by a restore of an older backup."""

    def __init__(self, log: str, applied: str, end: str) -> None:
        super().__init__(
            f"log {log!r}: the newest snapshot has {applied}, which the log, {end}, does not have. "
            "The log was restored from an older backup: restore a newer one, or remove the "
            "snapshots that are newer than the log, on every replica, and open it again"
        )
        self.log, self.applied, self.end = log, applied, end


class SnapshotTooNew(StorageError):
    def __init__(self, what: str, version: int, known: int) -> None:
        super().__init__(
            f"the newest snapshot has {what} version {version}; this replica knows versions up to "
            f"{known}: upgrade it, and open it again"
        )
        self.what, self.version, self.known = what, version, known


class DamagedLog(StorageError):
    def __init__(self, log: str, reason: str) -> None:
        super().__init__(
            f"log {log!r} does not join: {reason}; reading stops here, and 'dlog log verify' "
            "reports what is damaged"
        )
        self.log, self.reason = log, reason
