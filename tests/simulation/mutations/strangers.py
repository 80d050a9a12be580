"""Bugs that let strangers, their bytes, or a strange metadata store do harm."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from bookie.collector import collector, garbage
from bookie.collector.garbage import Alarm, StoreMemory, Verdict
from bookie.server import limits, metadata_lookups, unknown_ledger_policy
from bookie.server.service import BookieService
from dlog import recordbatch
from dlog.protocol import log_writer
from ledger import namespace_fingerprint
from ledger.namespace_fingerprint import NamespaceFingerprint
from ledger.protocol import read, recovery_phases, writer
from ledger.protocol.recovery_events import LacRead
from ledger.protocol.writer_events import AddsRefused, WriterEffect, WriterFailure
from ledger.requests import Status
from ledger.transport import framing
from tests.simulation.mutations.mutation import Patch, mutation

_COLLECTOR = "tests/bookie/collector/test_collector.py"
_MADE = "tests/bookie/server/test_made_ledgers.py"
_KEYS = "tests/simulation/scenarios/test_strange_keys.py"
_POISON = "tests/dlog/aio/test_poisoned_ledgers.py"


# A collector, and a metadata store that is not what it was.


@mutation(
    "rule 68",
    drawn=False,
    test=f"{_COLLECTOR}::test_a_namespace_that_is_not_the_bookies_own_deletes_nothing",
)
def collects_by_another_namespace(patch: Patch) -> None:
    honest = garbage.doubt

    def doubt(
        _instance: str, seen: StoreMemory, before: NamespaceFingerprint, after: NamespaceFingerprint
    ) -> Alarm | None:
        return honest(after.instance, seen, replace(before, instance=after.instance), after)

    patch.set(collector, "doubt", doubt)


@mutation(
    "rule 68",
    drawn=False,
    test=f"{_COLLECTOR}::"
    "test_a_store_restored_from_a_backup_deletes_nothing_until_an_operator_says_so",
)
def collects_by_an_older_namespace(patch: Patch) -> None:
    patch.set(namespace_fingerprint.NamespaceFingerprint, "is_older", lambda _self, _seen: False)


@mutation(
    "rule 68",
    drawn=False,
    test=f"{_COLLECTOR}::test_ledgers_that_are_gone_without_a_trace_wait_for_an_operator",
)
def collects_more_than_were_counted_as_deleted(patch: Patch) -> None:
    honest = garbage.judge

    def judge(gone: Sequence[int], *, counted: int, waiting: Collection[int], room: int) -> Verdict:
        return honest(gone, counted=max(counted, len(gone)), waiting=waiting, room=room)

    patch.set(collector, "judge", judge)


@mutation(
    "rule 68",
    drawn=False,
    test=f"{_COLLECTOR}::test_a_share_of_the_ledgers_may_go_without_a_trace_each_day",
)
def each_collection_takes_a_share_of_its_own(patch: Patch) -> None:
    patch.set(garbage.StoreMemory, "taking", lambda self, _untraced, _now: self)


@mutation(
    "rule 68",
    drawn=False,
    test=f"{_COLLECTOR}::test_ledgers_that_are_gone_without_a_trace_wait_for_an_operator",
)
def the_share_without_a_trace_has_no_bound(patch: Patch) -> None:
    patch.set(garbage.StoreMemory, "room", lambda _self, held, _share, _now: held)


# Ledgers that nobody made.


@mutation(
    "rules 29, 88",
    drawn=False,
    test=f"{_MADE}::test_a_ledger_that_nobody_made_is_neither_fenced_nor_written_and_never_denied",
)
def takes_ledgers_that_nobody_made(patch: Patch) -> None:
    async def admits(_self: BookieService, _ledger_id: int, _key: bytes) -> bool:
        return True

    patch.set(BookieService, "_admits", admits)


@mutation(
    "rules 29, 88",
    drawn=False,
    test=f"{_MADE}::test_a_ledger_that_nobody_made_is_neither_fenced_nor_written_and_never_denied",
)
def takes_a_ledger_under_any_key(patch: Patch) -> None:
    patch.set(metadata_lookups, "compare_digest", lambda _stored, _given: True)


@mutation(
    "rules 29, 88",
    drawn=False,
    test=f"{_MADE}::test_a_store_that_is_silent_lets_a_bounded_number_in_until_it_speaks",
)
def takes_any_number_of_ledgers_while_the_store_is_silent(patch: Patch) -> None:
    honest = unknown_ledger_policy.UnknownLedgerPolicy.admits

    def admits(self: unknown_ledger_policy.UnknownLedgerPolicy, *, found: bool | None) -> bool:
        return found is None or honest(self, found=found)

    patch.set(unknown_ledger_policy.UnknownLedgerPolicy, "admits", admits)


@mutation(
    "rule 88",
    drawn=False,
    test=f"{_KEYS}::test_a_poisoned_bookie_is_replaced_and_the_ledger_written_and_closed",
)
def a_writer_ends_at_the_first_strange_key(patch: Patch) -> None:
    honest = writer.Writer._refused

    def refused(self: writer.Writer, event: AddsRefused, now: float) -> list[WriterEffect]:
        if event.status is Status.WRONG_KEY:
            return self._fail(WriterFailure.WRONG_KEY)
        return honest(self, event, now)

    patch.set(writer.Writer, "_refused", refused)


@mutation(
    "rules 10, 88",
    drawn=False,
    test="tests/ledger/protocol/test_writer.py::test_what_was_confirmed_is_not_closed_as_empty",
)
def a_writer_closes_as_empty_what_it_acknowledged(patch: Patch) -> None:
    honest = writer.Writer._too_few

    def too_few(self: writer.Writer) -> list[WriterEffect]:
        confirmed, self._acks.confirmed = self._acks.confirmed, -1
        try:
            return honest(self)
        finally:
            self._acks.confirmed = confirmed

    patch.set(writer.Writer, "_too_few", too_few)


@mutation(
    "rules 39, 88",
    drawn=False,
    test="tests/ledger/protocol/test_recovery.py::"
    "test_bookies_that_have_the_ledger_under_another_key_say_nothing_about_it",
)
def a_strange_key_counts_as_a_fence(patch: Patch) -> None:
    """True only of a bookie that never lost anything."""
    honest = recovery_phases.Fencing.heard

    def heard(self: recovery_phases.Fencing, event: LacRead, now: float) -> None:
        honest(self, replace(event, fenced=event.fenced or event.status is Status.WRONG_KEY), now)

    patch.set(recovery_phases.Fencing, "heard", heard)


@mutation(
    "rule 88",
    drawn=False,
    test=f"{_KEYS}::test_what_was_acknowledged_beside_a_poisoned_bookie_is_recovered_and_read",
)
def a_reader_believes_the_first_strange_key(patch: Patch) -> None:
    honest = read.Reading._entries_read

    def entries_read(
        self: read.Reading, event: read.EntriesRead, now: float
    ) -> list[read.ReadingEffect]:
        if event.status is Status.WRONG_KEY:
            return self._fail(read.ReadFailure.WRONG_KEY)
        return honest(self, event, now)

    patch.set(read.Reading, "_entries_read", entries_read)


@mutation(
    "rule 88",
    drawn=False,
    test=f"{_POISON}::test_a_log_goes_on_in_ledgers_that_nobody_poisoned",
)
def a_log_ends_with_its_first_poisoned_ledger(patch: Patch) -> None:
    patch.set(log_writer, "EMPTY_CLOSES_MAX", 0)


# What strangers can take of a process.


@mutation(
    "own",
    drawn=False,
    test="tests/bookie/server/test_descriptors.py::test_the_shares_never_add_up_to_more_than_there_are",
)
def connections_take_the_descriptors_of_the_disk(patch: Patch) -> None:
    patch.set(limits, "CONNECTIONS_MAX", 1 << 20)
    patch.set(limits, "_OTHERS", 0)


@mutation(
    "own",
    drawn=False,
    test="tests/bookie/server/test_descriptors.py::test_one_connection_too_many_is_not_served",
)
def connections_have_no_bound(patch: Patch) -> None:
    patch.set(limits.ConnectionSlots, "__len__", lambda _: 0)


@mutation(
    "own",
    drawn=False,
    test="tests/ledger/test_transport_framing.py::"
    "test_all_connections_together_hold_no_more_than_the_budget",
)
def each_connection_holds_large_messages_as_if_it_were_alone(patch: Patch) -> None:
    honest = framing.FrameReader.__init__

    def reader(
        self: framing.FrameReader,
        scratch: memoryview,
        *,
        body_bytes_max: int,
        budget: framing.Budget,
    ) -> None:
        own = framing.Budget(budget.bytes_max)
        honest(self, scratch, body_bytes_max=body_bytes_max, budget=own)

    patch.set(framing.FrameReader, "__init__", reader)


class _AnySize(int):
    """What every size is equal to."""

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = int.__hash__


@mutation(
    "own",
    drawn=False,
    test="tests/dlog/test_recordbatch.py::test_a_few_bytes_that_say_they_are_many_cost_no_memory",
)
def a_batch_is_decompressed_before_its_sizes_are_checked(patch: Patch) -> None:
    patch.set(recordbatch, "_body_bytes", lambda *_: _AnySize(0))
    patch.set(recordbatch, "BODY_BYTES_MAX", 1 << 40)
    patch.set(recordbatch, "LZ4_RATIO_MAX", 1 << 40)
