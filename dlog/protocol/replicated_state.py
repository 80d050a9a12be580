"""A state machine and what belongs to its state, at one offset of its log.

Every replica applies the same records in the same order, so at the same offset all have the same
state. What a state machine raises ends that: the record is not applied, here or anywhere.

Invariants:
    each record is applied once, in the order of offsets, none is left out
    a request has one effect, as long as its client is in the table
    once a record failed, nothing more is applied
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO, ClassVar, Final, Generic, NamedTuple, TypeVar

from dlog.errors import (
    ApplyFailed,
    CommandTooNew,
    InvalidResult,
    RequestForgotten,
    SnapshotTooNew,
    StateDiverged,
    StateNotRestored,
)
from dlog.protocol.client_table import (
    NO_RESULT,
    ClientTable,
    Forgotten,
    decode_result,
    encode_result,
)
from dlog.protocol.command import (
    Command,
    CommandEnvelope,
    LeaderMark,
    Origin,
    StateDigest,
    check_digest,
    decode,
    new_tuple,
)
from dlog.protocol.snapshot import PIECE_BYTES, SnapshotHeader, WriteState
from ledger.errors import LogError

StoredRecord = CommandEnvelope | LeaderMark | StateDigest
StoredCommand = tuple[int, int, bytes | StoredRecord]
"""A record of the log: its offset, timestamp in milliseconds, and value; or, if this replica
appended it, what the value says."""


class StateMachine(ABC):
    """The state of an application that is replicated by a log.

    `apply` must be deterministic: the same commands in the same order make the same state and the
    same results on every replica and on every machine, now and when they are applied again from
    the log. So it uses nothing but the state and the command: no clock (`Command.timestamp_ms` is
    there), no randomness, no files, no order of sets, no environment."""

    version: ClassVar[int] = 1
    """Of the commands that this program submits. A replica stops at a command of a larger one:
    upgrade all replicas to a program that can apply it, then to one that submits it."""

    @abstractmethod
    def apply(self, command: Command) -> object:
        """Change the state, and return what `submit` returns.

        The result of a request is kept: bytes, or what JSON can say; for any other one `submit`
        raises `InvalidResult`, though the command was applied. A refusal, as of a
        payment without money, is a result too: *an error that is raised stops every replica* at
        this record."""

    digest_every: ClassVar[int] = 10_000
    """How many records apart `digest` is asked for; 100 or more."""

    def digest(self) -> bytes | None:
        """Return a hash of the whole state, of up to 64 bytes, to be compared; None: it is not.

        The leader writes it to the log, and a replica that had another one at the same offset stops
        with `StateDiverged`. What it raises stops the replica, and so does what is no such hash."""
        return None

    def snapshot(self, out: BinaryIO) -> None:
        """Write the whole state to *out*, so that `restore` of any replica can read it.

        Needed for a store of snapshots. Called between two commands."""
        raise NotImplementedError(f"{type(self).__name__} has no snapshots: define snapshot")

    def restore(self, source: BinaryIO) -> None:
        """Replace the whole state by what `snapshot` wrote: this program's, or an earlier one's."""
        raise NotImplementedError(f"{type(self).__name__} has no snapshots: define restore")

    def capture(self) -> WriteState:
        """Return what writes the state as it is now, while further commands are applied.

        Called between two commands; what it returns is called once, on another thread. By default
        the state is written to memory at once, by `snapshot`, and commands wait for that. A large
        state is better copied, or shared where it does not change."""
        written = BytesIO()
        self.snapshot(written)
        return lambda out: out.write(written.getbuffer())


def has_snapshots(machine: StateMachine) -> bool:
    kind = type(machine)
    return kind.restore is not StateMachine.restore and (kind.snapshot, kind.capture) != (
        StateMachine.snapshot,
        StateMachine.capture,
    )


M = TypeVar("M", bound=StateMachine)


class AppliedCommand(NamedTuple):
    origin: Origin
    result: object
    error: LogError | None = None
    """Why it has no result."""


Applied = AppliedCommand | LeaderMark | StateDigest
_IMMUTABLE: Final = frozenset({int, bool, str, bytes, type(None)})
DIGESTS_MAX: Final = 16
"""As many of those made here are known when the leader's come."""


class ReplicatedState(Generic[M]):
    """Used by one thread at a time."""

    def __init__(self, log: str, machine: M) -> None:
        self.machine: Final = machine
        self.offset = 0
        """Of the record that is applied next."""
        self.leader: LeaderMark | None = None
        """The one of the last epoch that was applied."""
        self.txid: int | None = None
        """The last one of the records that were applied; None: none has any."""
        self.clients = ClientTable()
        self.failure: LogError | None = None
        """What ended it, at `offset`."""
        self._is_torn = False
        """Since a restore began that did not succeed: the machine has the state of no offset."""
        self._log = log
        self._digests: dict[int, bytes] = {}
        """The last ones that were made here, by offset."""

    def apply(
        self, records: Iterable[StoredCommand], *, last_txid: int | None = None
    ) -> list[Applied]:
        """Apply *records*, which follow each other; return what became of each. *last_txid*: the
        last one that any of them has.

        A digest that is due comes behind the record that it includes.

        Ends at the first that fails: see `failure`. Raises `StateNotRestored`."""
        if self._is_torn:
            raise StateNotRestored(self._log)
        applied: list[Applied] = []
        for offset, timestamp_ms, value in records:
            if self.failure is not None:
                break
            assert offset == self.offset, f"offset {offset} comes after {self.offset - 1}"
            try:
                record = value
                if isinstance(record, bytes):
                    record = decode(record, log=self._log, offset=offset)
                if isinstance(record, CommandEnvelope):
                    applied.append(self._apply_command(record, timestamp_ms))
                elif isinstance(record, LeaderMark):
                    self.leader = record
                    applied.append(record)
                else:
                    self._compare(record)
                if self.failure is None:
                    self.offset += 1
                    if self.offset % self.machine.digest_every == 0:
                        applied += self._digest()
            except LogError as error:
                self.failure = error
            except BaseException as error:
                self._fail(error)
                raise
        if last_txid is not None:
            self.txid = last_txid
        return applied

    def _fail(self, error: BaseException) -> ApplyFailed:
        failure = self.failure = ApplyFailed(self._log, self.offset, error)
        failure.__cause__ = error
        return failure

    def _digest(self) -> list[StateDigest]:
        try:
            digest = self.machine.digest()
            if digest is None:
                return []
            check_digest(digest)
        except Exception as error:  # noqa: BLE001 - whatever it is, no replica may pass it
            self._fail(error)
            return []
        self._digests[self.offset] = digest
        if len(self._digests) > DIGESTS_MAX:
            del self._digests[min(self._digests)]
        return [StateDigest(self.offset, digest)]

    def _compare(self, digest: StateDigest) -> None:
        """Raises `StateDiverged`."""
        if self._digests.get(digest.offset, digest.digest) != digest.digest:
            raise StateDiverged(self._log, digest.offset)

    def _apply_command(self, envelope: CommandEnvelope, timestamp_ms: int) -> AppliedCommand:
        payload, version, origin, request = envelope
        machine = self.machine
        if version > machine.version:
            what = "the application's"
            raise CommandTooNew(self._log, self.offset, what, version, machine.version)
        if request is not None:
            kept = self.clients.find(request)
            if isinstance(kept, Forgotten):
                error = RequestForgotten(self._log, request.client, request.number, kept.floor)
                return AppliedCommand(origin, None, error)
            if kept is not None:
                return _applied(origin, kept)
        command = new_tuple(Command, (payload, self.offset, timestamp_ms, version, request))
        try:
            result = machine.apply(command)
        except Exception as error:  # noqa: BLE001 - whatever it is, no replica may pass it
            return AppliedCommand(origin, None, self._fail(error))
        if request is not None:
            try:
                kept = encode_result(result)
            except InvalidResult as error:
                # The command has its effect, so this is no reason to stop. Why there is no result
                # is told here alone: it is a text of this program, and the table is the same
                # everywhere.
                self.clients.put(request, NO_RESULT)
                return AppliedCommand(origin, None, error)
            self.clients.put(request, kept)
            if type(result) not in _IMMUTABLE:
                return _applied(origin, kept)  # a copy, as the state machine may change its own
        return new_tuple(AppliedCommand, (origin, result, None))

    def check(self) -> None:
        """Raises `failure`, and `StateNotRestored`."""
        self._check_failure()
        if self._is_torn:
            raise StateNotRestored(self._log)

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    # Snapshots.

    def capture(self, incarnation: str, *, now_ms: int) -> "CapturedState":
        """Return the state as it is now, to be written while further records are applied.

        Raises what `check` does: the state may have been changed in part."""
        self.check()
        leader = self.leader or LeaderMark(0, "", "")
        header = SnapshotHeader(
            log=self._log,
            incarnation=incarnation,
            offset=self.offset,
            txid=self.txid,
            epoch=leader.epoch,
            leader=leader.name,
            address=leader.address,
            endpoint=leader.endpoint,
            version=self.machine.version,
            written_ms=now_ms,
        )
        return CapturedState(header, tuple(self.clients.encode()), self.machine.capture())

    def restore(self, header: SnapshotHeader, table: bytes, state: BinaryIO) -> None:
        """Continue from a snapshot, which was found whole. Raises `SnapshotTooNew`, and what the
        state machine raises: it is of no use then. Raises `DamagedSnapshot` if the snapshot is not
        whole any more: then an earlier one can be restored, as each replaces the whole state. Until
        one was, `check` raises. Raises `failure`."""
        self._check_failure()
        assert header.offset >= self.offset, "a state never goes back"
        if header.version > self.machine.version:
            raise SnapshotTooNew("the application's", header.version, self.machine.version)
        clients = ClientTable.decode(table)
        self._is_torn = True
        try:
            self.machine.restore(state)
        except Exception:
            with suppress(ValueError):  # the machine closed it
                _read_to_end(state)  # if it is damaged, that is why
            raise
        _read_to_end(state)
        self._is_torn = False
        self.clients, self.offset, self.txid = clients, header.offset, header.txid
        self.leader = None
        if header.epoch:
            self.leader = LeaderMark(header.epoch, header.leader, header.address, header.endpoint)


@dataclass(frozen=True, slots=True)
class CapturedState:
    header: SnapshotHeader
    table: tuple[bytes, ...]
    write_state: WriteState


def _read_to_end(state: BinaryIO) -> None:
    """Raises `DamagedSnapshot`: the checksum is at the end."""
    while state.read(PIECE_BYTES):
        pass


def _applied(origin: Origin, kept: bytes) -> AppliedCommand:
    try:
        return AppliedCommand(origin, decode_result(kept))
    except InvalidResult as error:
        return AppliedCommand(origin, None, error)
