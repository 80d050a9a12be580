"""Bugs of replicas: of what happens once, of what a read sees, of snapshots and truncation."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any, BinaryIO

from dlog import snapshot_store
from dlog.aio import leader_term, snapshot_keeper
from dlog.aio.command_router import CommandRouter
from dlog.aio.forward import ForwardFailed, WriterRights
from dlog.aio.leader_term import CommandOutcome, resolve
from dlog.aio.read.tails import acknowledged_end
from dlog.aio.read_barrier import ReadBarrier
from dlog.aio.replica import Replica
from dlog.aio.snapshot_keeper import SnapshotKeeper
from dlog.aio.store import ManifestNode
from dlog.errors import NotLeader, ObjectStorageUnavailable
from dlog.position import Record
from dlog.protocol import replicated_state
from dlog.protocol.client_table import ClientTable
from dlog.protocol.command import LeaderMark, Origin, RequestId
from dlog.protocol.proposals import Proposals
from dlog.protocol.replicated_state import CapturedState, ReplicatedState, StateMachine
from dlog.protocol.snapshot import SnapshotHeader, WriteState, read_header, write_snapshot
from dlog.snapshot_store import SnapshotFile, SnapshotStore
from ledger.errors import LogError
from tests.simulation.mutations.mutation import Patch, mutation

_TABLE = "tests/dlog/protocol/test_replicated_state.py"
_SNAPSHOTS = "tests/dlog/aio/test_replica_snapshots.py"
_REPLICAS = "tests/dlog/aio/test_aio_replica.py"


@mutation(
    "", replicas=True, test=f"{_TABLE}::test_a_request_is_found_by_its_client_and_number_alone"
)
def forgets_what_it_has_done(patch: Patch) -> None:
    def find(_: ClientTable, _request: RequestId) -> None:
        return None

    def put(*_: object) -> None:
        return None

    patch.set(ClientTable, "find", find)
    patch.set(ClientTable, "put", put)


@mutation("", replicas=True)
def leaves_requests_out_of_snapshots(patch: Patch) -> None:
    honest = ReplicatedState.capture

    def capture(self: ReplicatedState[Any], incarnation: str, *, now_ms: int) -> CapturedState:
        captured = honest(self, incarnation, now_ms=now_ms)
        return CapturedState(captured.header, tuple(ClientTable().encode()), captured.write_state)

    patch.set(ReplicatedState, "capture", capture)


@mutation("", replicas=True)
def returns_the_present_state_to_a_repeated_request(patch: Patch) -> None:
    """The result of the newest request of its client, instead of its own."""
    honest = ClientTable.find

    def find(self: ClientTable, request: RequestId) -> object:
        found = honest(self, request)
        if not isinstance(found, bytes):
            return found
        return b"j%d" % (int(self._clients[request.client].results[-1][1:]) + 1)

    patch.set(ClientTable, "find", find)


@mutation(
    "",
    replicas=True,
    drawn=False,
    test=f"{_REPLICAS}::test_what_was_in_flight_when_the_lead_was_lost_is_found_in_the_log",
)
def calls_refused_what_has_no_outcome(patch: Patch) -> None:
    """As if an append that ended with its writer were not in the log. Not drawn: most commands are
    requests, which are repeated, and then nobody can tell."""
    honest = Replica._step_down

    async def step_down(self: Replica[Any], standby: Any) -> None:
        await honest(self, standby)
        for waiter in self._commands._proposals.give_up():
            resolve(waiter, CommandOutcome(error=NotLeader(self.name, "", "", 0)))

    patch.set(Replica, "_step_down", step_down)


@mutation("", replicas=True)
def calls_refused_what_it_did_not_learn_in_time(patch: Patch) -> None:
    class Refused(NotLeader):
        def __init__(self, log: str, reason: str) -> None:
            super().__init__(log, reason, "", 0)

    patch.set(leader_term, "CommandOutcomeUnknown", Refused)


@mutation(
    "",
    replicas=True,
    drawn=False,
    test=f"{_TABLE}::test_a_proposal_leaves_once_by_its_origin",
)
def knows_its_commands_by_their_number_alone(patch: Patch) -> None:
    """Not drawn: two replicas would have to wait for the same number at the same time."""
    honest = Proposals.leave

    def leave(self: Proposals[Any], origin: Origin) -> object:
        return honest(self, Origin(self.proposer, origin.sequence))

    patch.set(Proposals, "leave", leave)


@mutation(
    "",
    replicas=True,
    test=f"{_REPLICAS}::test_a_read_sees_what_was_acknowledged_to_anybody_also_on_a_follower",
)
def reads_without_a_barrier(patch: Patch) -> None:
    async def wait(_: ReadBarrier) -> None:
        return

    patch.set(ReadBarrier, "wait", wait)


@mutation("", replicas=True)
def reads_at_a_leader_by_its_lease(patch: Patch) -> None:
    """A clock says that it leads; another may have led since, and acknowledged."""
    honest = Replica._reach_end

    async def reach_end(self: Replica[Any]) -> None:
        if self._term is None or not self._term.serves:
            await honest(self)

    patch.set(Replica, "_reach_end", reach_end)


@mutation(
    "",
    replicas=True,
    test=f"{_REPLICAS}::test_a_read_that_began_during_a_barrier_waits_for_the_next_one",
)
def joins_the_barrier_that_is_under_way(patch: Patch) -> None:
    async def passing(self: ReadBarrier) -> None:
        error: Exception | None = None
        try:
            await self._reach_end()
        except LogError as raised:
            error = raised
        readers, self._readers = self._readers, []
        self._passing = None
        for reader in readers:
            if not reader.done():
                if error is None:
                    reader.set_result(None)
                else:
                    reader.set_exception(error)

    patch.set(ReadBarrier, "_pass", passing)


@mutation(
    "",
    replicas=True,
    test=f"{_REPLICAS}::test_a_read_of_a_replica_that_lags_behind_fails_in_time",
)
def reads_before_it_has_applied_the_barrier(patch: Patch) -> None:
    async def reach_end(self: Replica[Any]) -> None:
        await acknowledged_end(self._ledgers, self._node, incarnation=self._incarnation)

    patch.set(Replica, "_reach_end", reach_end)


@mutation(
    "",
    replicas=True,
    drawn=False,
    test=f"{_REPLICAS}::test_what_is_read_again_is_not_applied_again",
)
def applies_again_what_it_reads_again(patch: Patch) -> None:
    """Not drawn: a takeover has to end half way, between a batch and its position."""

    async def follow(self: Replica[Any], batch: Sequence[Record]) -> None:
        for record in batch:
            self._state.offset = record.offset
            stored = record.offset, record.timestamp_ms, record.value
            await self._apply([stored], len(record.value))

    patch.set(Replica, "_follow", follow)


@mutation(
    "",
    replicas=True,
    test=f"{_SNAPSHOTS}::test_a_snapshot_is_of_one_state_while_commands_are_applied",
)
def snapshots_what_was_applied_since(patch: Patch) -> None:
    """It writes the state as it is when the thread comes to it."""

    def capture(self: StateMachine) -> WriteState:
        return self.snapshot

    patch.set(StateMachine, "capture", capture)


@mutation("", replicas=True)
def continues_behind_the_snapshot(patch: Patch) -> None:
    honest = ReplicatedState.restore

    def restore(self: ReplicatedState[Any], header: Any, table: bytes, state: Any) -> None:
        honest(self, header, table, state)
        self.offset += 1

    patch.set(ReplicatedState, "restore", restore)


@mutation(
    "",
    replicas=True,
    test=f"{_SNAPSHOTS}::test_the_newest_whole_one_is_found_and_a_damaged_one_is_passed_over",
)
def restores_what_is_damaged(patch: Patch) -> None:

    def check(source: BinaryIO, _size: int, _progress: object = None) -> SnapshotHeader:
        return read_header(source)

    patch.set(snapshot_store, "check_snapshot", check)


@mutation(
    "own bug",
    replicas=True,
    drawn=False,
    test=f"{_SNAPSHOTS}::test_a_damaged_snapshot_does_not_stand_for_one_that_is_kept",
)
def counts_a_damaged_snapshot_as_kept(patch: Patch) -> None:
    """Not drawn: after it the newest one has to be damaged as well."""

    async def sort_out(
        self: SnapshotStore, count: int, _whole: SnapshotFile | None = None
    ) -> tuple[list[SnapshotFile], list[SnapshotFile]]:
        files = await self.files()
        return files[:count], files[count:]

    patch.set(SnapshotStore, "sort_out", sort_out)


@mutation(
    "",
    replicas=True,
    test=f"{_SNAPSHOTS}::test_an_upload_that_is_torn_or_lost_is_no_snapshot",
)
def believes_an_upload_that_was_confirmed(patch: Patch) -> None:
    """It is not read back, so the log may be truncated behind half an object."""

    async def write(
        self: Any, header: SnapshotHeader, table: Any, write_state: WriteState, progress: Any
    ) -> str:
        out = BytesIO()
        write_snapshot(out, header, table, write_state)
        name = f"snapshot-{header.offset:020d}-{len(out.getvalue()):016x}"
        await self._folder.put(name, snapshot_store._pieces(out, progress))
        return name

    patch.set(snapshot_store._Objects, "write", write)


@mutation(
    "",
    replicas=True,
    test=f"{_SNAPSHOTS}::test_a_list_that_lacks_the_newest_object_hides_no_snapshot_that_is_kept",
)
def knows_of_what_is_listed_alone(patch: Patch) -> None:
    """Its list is late, and the log was truncated behind an object that the list lacks."""

    async def noted(_: SnapshotKeeper) -> list[str]:
        return []

    patch.set(SnapshotKeeper, "_noted", noted)


@mutation(
    "",
    replicas=True,
    drawn=False,
    test=f"{_SNAPSHOTS}::"
    "test_a_replica_whose_log_was_truncated_waits_for_object_storage_and_lets_others_lead",
)
def takes_a_storage_that_is_unavailable_for_an_empty_one(patch: Patch) -> None:
    """It stops, as the log was truncated, and there seems to be no snapshot. Not drawn: the storage
    has to be unavailable twice to a replica that begins."""
    honest = SnapshotKeeper.restore_newest

    async def restore_newest(self: SnapshotKeeper) -> bool:
        try:
            return await honest(self)
        except ObjectStorageUnavailable:
            return False

    patch.set(SnapshotKeeper, "restore_newest", restore_newest)


@mutation(
    "",
    replicas=True,
    drawn=False,
    test=f"{_SNAPSHOTS}::test_what_is_kept_is_noted_before_others_are_deleted",
)
def deletes_before_it_notes(patch: Patch) -> None:
    """Not drawn: it has to crash, or a replica to begin, between the two."""
    honest = SnapshotStore.sort_out

    async def sort_out(
        self: SnapshotStore, count: int, whole: SnapshotFile | None = None
    ) -> tuple[list[SnapshotFile], list[SnapshotFile]]:
        kept, surplus = await honest(self, count, whole)
        await self.delete(surplus)
        return kept, []

    patch.set(SnapshotStore, "sort_out", sort_out)


@mutation(
    "",
    replicas=True,
    test=f"{_SNAPSHOTS}::test_the_log_is_truncated_to_the_oldest_that_is_kept",
)
def truncates_to_the_newest_snapshot(patch: Patch) -> None:
    """The newest has to be damaged, and a replica to begin before there is another."""
    honest, commit = SnapshotKeeper._truncate, SnapshotKeeper._commit

    async def truncate(self: SnapshotKeeper, _oldest: SnapshotFile) -> None:
        await honest(self, (await self._store.files())[0])

    async def committed(self: SnapshotKeeper, kept: Sequence[SnapshotFile]) -> None:
        await commit(self, kept[:1])

    patch.set(SnapshotKeeper, "_truncate", truncate)
    patch.set(SnapshotKeeper, "_commit", committed)


@mutation(
    "",
    replicas=True,
    test=f"{_SNAPSHOTS}::test_nothing_is_truncated_that_another_store_or_a_consumer_needs",
)
def truncates_what_others_need(patch: Patch) -> None:

    async def nobody(*_: object) -> list[object]:
        return []

    patch.set(snapshot_keeper, "read_consumers", nobody)


@mutation(
    "",
    replicas=True,
    drawn=False,
    test=f"{_TABLE}::test_what_apply_raises_stops_the_state_before_that_record",
)
def passes_over_what_apply_raises(patch: Patch) -> None:
    """Not drawn: nothing that is applied there raises."""

    def failed(_log: str, _offset: int, _error: BaseException) -> None:
        return None

    patch.set(replicated_state, "ApplyFailed", failed)


@mutation(
    "",
    replicas=True,
    test="tests/dlog/aio/test_replica_registry.py"
    "::test_the_log_keeps_what_a_running_replica_without_snapshots_has_not_applied",
)
def truncates_what_a_replica_without_snapshots_needs(patch: Patch) -> None:
    async def nobody(*_: object) -> list[object]:
        return []

    patch.set(snapshot_keeper, "read_replicas", nobody)


@mutation(
    "own bug",
    replicas=True,
    drawn=False,
    test="tests/dlog/aio/test_replica_registry.py"
    "::test_a_truncation_that_was_decided_before_a_replica_registered_is_decided_again",
)
def truncates_by_a_list_of_before(patch: Patch) -> None:
    """A replica, or a store, registers between the list and the truncation. Not drawn: within a few
    milliseconds, or while the replica that truncates is paused right there."""

    async def touch(_: ManifestNode) -> None:
        return None

    patch.set(ManifestNode, "touch", touch)


@mutation(
    "",
    replicas=True,
    drawn=False,
    test="tests/dlog/aio/test_forward.py::test_a_reply_that_is_lost_is_asked_for_again",
)
def forwards_again_as_another_request(patch: Patch) -> None:
    """Not drawn: nothing is forwarded there."""
    honest = CommandRouter._forward

    async def forwarded(
        self: CommandRouter, leader: LeaderMark, payload: bytes, _: RequestId, left_s: float
    ) -> object:
        return await honest(self, leader, payload, self._numbers.take(), left_s)

    patch.set(CommandRouter, "_forward", forwarded)


@mutation(
    "",
    replicas=True,
    drawn=False,
    test="tests/dlog/aio/test_forward.py"
    "::test_a_command_that_never_left_is_not_applied_and_one_that_did_is_unknown",
)
def calls_refused_what_was_forwarded_without_a_reply(patch: Patch) -> None:
    """Not drawn: nothing is forwarded there."""
    honest = ForwardFailed.__init__

    def __init__(self: ForwardFailed, reason: str, **_: bool) -> None:  # noqa: N807
        honest(self, reason, was_sent=False)

    patch.set(ForwardFailed, "__init__", __init__)


@mutation(
    "",
    replicas=True,
    drawn=False,
    test="tests/dlog/aio/test_forward.py"
    "::test_only_writers_of_the_log_forward_commands_and_answer_them",
)
def takes_commands_of_readers(patch: Patch) -> None:
    """Not drawn: nothing is forwarded there."""

    async def may_write(_: WriterRights, _connection: object) -> bool:
        return True

    patch.set(WriterRights, "may_write", may_write)


@mutation(
    "",
    replicas=True,
    test=f"{_REPLICAS}::test_a_local_read_returns_at_once_and_says_how_old_it_is",
)
def says_that_its_state_is_new(patch: Patch) -> None:
    def age_s(_: ReadBarrier) -> float:
        return 0.0

    patch.set(ReadBarrier, "age_s", age_s)


@mutation("", replicas=True)
def counts_its_age_from_what_it_applied_last(patch: Patch) -> None:
    """A follower applies what was acknowledged long ago, and more may have been since."""
    honest = Replica._apply

    async def apply(self: Replica[Any], *records: Any, **named: Any) -> None:
        await honest(self, *records, **named)
        self._barrier.prove(self._loop.time())

    patch.set(Replica, "_apply", apply)
