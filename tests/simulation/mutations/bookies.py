"""Bugs of a bookie's request handling and of what it keeps about a ledger."""

from dataclasses import replace

from bookie.entrylog.reader import Stored
from bookie.index.format import LedgerHeader
from bookie.journal.format import Record, RecordKind
from bookie.pieces import FoundPieces
from bookie.server.core import Ack, AddSession, BookieCore
from bookie.storage import checkpoint, engine, reads
from bookie.storage.add_lookup import Prepared, Vetted
from bookie.storage.engine import BookieStorage
from bookie.storage.holdings import StorageState
from bookie.storage.ledger_table import LedgerRecord, LedgerTable
from bookie.storage.memtable import Memtable
from bookie.storage.replay import Replay
from ledger.entry import Checked
from ledger.protocol.procedure import Steps
from ledger.requests import AddRun, ReadAnswer, ReadQuery, Status
from tests.simulation.mutations.mutation import Patch, mutation

_ORDINARY = "tests/bookie/storage/test_ordinary.py::test_"


@mutation("rule 59")
def answers_adds_before_the_journal_is_synced(patch: Patch) -> None:
    honest = AddSession.acks

    def hasty(self: AddSession) -> list[Ack]:
        self._core.durable = 1 << 60
        return honest(self)

    patch.set(AddSession, "acks", hasty)


@mutation("rule 33")
def answers_a_fence_before_it_is_durable(patch: Patch) -> None:
    def fence(self: BookieCore, ledger_id: int, key: bytes) -> Steps[Status | None]:
        status, _ = self.storage.fence(ledger_id, key)
        yield from ()
        return None if status is Status.OK else status

    patch.set(BookieCore, "_fence", fence)


@mutation("rule 33")
def answers_a_negative_before_its_fence_is_durable(patch: Patch) -> None:
    """Waits on success, as BookKeeper does, but says at once that it has nothing."""
    honest = BookieCore._fence

    def fence(self: BookieCore, ledger_id: int, key: bytes) -> Steps[Status | None]:
        if self.storage.lac(ledger_id, key).status is not Status.NO_SUCH_LEDGER:
            return (yield from honest(self, ledger_id, key))
        status, _ = self.storage.fence(ledger_id, key)
        return None if status is Status.OK else status

    patch.set(BookieCore, "_fence", fence)


@mutation("#4462, rule 29")
def does_not_refuse_adds_after_a_fence(patch: Patch) -> None:
    honest = BookieStorage.add

    def add(self: BookieStorage, run: AddRun, prepared: Prepared = None) -> tuple[Status, int]:
        return honest(self, replace(run, recovery=True), prepared)

    patch.set(BookieStorage, "add", add)


@mutation("rule 30")
def takes_adds_to_an_ordinary_ledger_that_was_fenced(patch: Patch) -> None:
    def fence(self: LedgerTable, record: LedgerRecord, ticket: int) -> None:
        record.fenced, record.fence_ticket = True, ticket
        self.touch(record)

    patch.set(LedgerTable, "fence", fence)
    patch.set(BookieStorage, "check_ordinary", lambda _self: None)


@mutation("rule 30", drawn=False, test=_ORDINARY + "a_ledger_is_not_ordinary_any_more")
def takes_adds_to_ordinary_ledgers_of_a_bookie_that_is_read_only(patch: Patch) -> None:
    patch.set(StorageState, "nothing_is_ordinary", lambda _self: None)


@mutation("rule 65")
def does_not_write_again_what_was_added_to_an_ordinary_ledger(patch: Patch) -> None:
    honest = LedgerTable.begin_flush

    def begin_flush(self: LedgerTable) -> None:
        ordinary = dict(self.ordinary)
        honest(self)
        self.ordinary.update(ordinary)

    patch.set(LedgerTable, "begin_flush", begin_flush)


@mutation("#4163, rule 29")
def refuses_recovery_adds_after_a_fence(patch: Patch) -> None:
    honest = BookieStorage.add

    def add(self: BookieStorage, run: AddRun, prepared: Prepared = None) -> tuple[Status, int]:
        return honest(self, replace(run, recovery=False), prepared)

    patch.set(BookieStorage, "add", add)


@mutation("BK-500, rule 34")
def forgets_its_fences_at_a_restart(patch: Patch) -> None:
    honest = Replay._apply

    def apply(
        self: Replay, record: Record, ledgers: LedgerTable, memtable: Memtable, path: str
    ) -> None:
        if record.kind is not RecordKind.FENCE:
            honest(self, record, ledgers, memtable, path)

    patch.set(Replay, "_apply", apply)


@mutation("rule 35")
def replays_no_fence_of_a_ledger_without_entries(patch: Patch) -> None:
    honest = Replay._apply

    def apply(
        self: Replay, record: Record, ledgers: LedgerTable, memtable: Memtable, path: str
    ) -> None:
        if record.kind is not RecordKind.FENCE or ledgers.is_known(record.ledger_id):
            honest(self, record, ledgers, memtable, path)

    patch.set(Replay, "_apply", apply)


@mutation("BK-815")
def loses_the_fence_at_a_checkpoint(patch: Patch) -> None:
    def header_of(record: LedgerRecord) -> LedgerHeader:
        return replace(record.stored, lac_proof=record.lac_proof)

    patch.set(checkpoint, "header_of", header_of)


@mutation("rule 34")
def answers_a_second_fence_before_the_first_is_durable(patch: Patch) -> None:
    honest = BookieStorage._fence

    def fence(
        self: BookieStorage, ledger_id: int, key: bytes, record: LedgerRecord | None
    ) -> tuple[Status, int]:
        repeated = record is not None and record.fenced
        status, ticket = honest(self, ledger_id, key, record)
        return status, 0 if repeated else ticket

    patch.set(BookieStorage, "_fence", fence)


@mutation("rules 11, 59")
def answers_a_repeated_add_before_it_is_durable(patch: Patch) -> None:
    honest = BookieStorage._add

    def add(
        self: BookieStorage, run: AddRun, checked: Checked, vetted: object, record: object
    ) -> object:
        before = self._journals.last_ticket
        outcome = honest(self, run, checked, vetted, record)  # type: ignore[arg-type]
        repeated = self._journals.last_ticket == before
        if isinstance(outcome, tuple) and outcome[0] is Status.OK and repeated:
            return Status.OK, 0
        return outcome

    patch.set(BookieStorage, "_add", add)


@mutation("rule 11")
def accepts_other_bytes_under_the_same_id(patch: Patch) -> None:
    new, vet = BookieStorage._new_entries, BookieStorage._vet

    def agreeable(self: BookieStorage, *arguments: object) -> object:
        outcome = new(self, *arguments)  # type: ignore[arg-type]
        return [] if outcome == (Status.CONFLICT, 0) else outcome

    def blind(self: BookieStorage, *arguments: object, repairs: bool) -> object:
        outcome = vet(self, *arguments, repairs=repairs)  # type: ignore[arg-type]
        return Status.OK if outcome is Status.CONFLICT else outcome

    patch.set(BookieStorage, "_new_entries", agreeable)
    patch.set(BookieStorage, "_vet", blind)


@mutation("sparse ids")
def takes_ids_that_no_writer_can_have_made(patch: Patch) -> None:
    patch.set(engine, "ENTRIES_AHEAD_MAX", 1 << 62)


@mutation("rule 58")
def takes_a_damaged_copy_for_the_one_that_recovery_adds(patch: Patch) -> None:
    """It is not replaced, but acknowledged."""
    honest = BookieStorage._vet

    def vet(self: BookieStorage, *arguments: object, repairs: bool) -> object:
        outcome = honest(self, *arguments, repairs=repairs)  # type: ignore[arg-type]
        if isinstance(outcome, Vetted) and repairs:
            checked = arguments[1]
            assert isinstance(checked, Checked)
            return replace(outcome, present=dict.fromkeys(checked.entries))
        return outcome

    patch.set(BookieStorage, "_vet", vet)


@mutation("#2908, rule 58")
def answers_no_such_entry_when_the_disk_fails(patch: Patch) -> None:
    honest = reads._answer

    def answer(query: ReadQuery, view: object, stored: Stored) -> ReadAnswer:
        if stored.damage is not None:
            stored = Stored(FoundPieces(stored.found.pieces, query.last))
        return honest(query, view, stored)  # type: ignore[arg-type]

    patch.set(reads, "_answer", answer)
