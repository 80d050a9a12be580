"""The storage against a plain dictionary, in any order of calls, crashes and full disks.

While a storage is open, the model knows exactly what it must answer. What a crash may take is
what was not durable: after a restart the model learns from the storage which of that is there,
after it has seen that nothing durable is missing and nothing strange is there. From then on all
of it is durable: recovery syncs what it believes.

DLOG_TEST_MODEL_S: hunt for so long, at random; else a fixed set of short runs.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bookie.collector.collection import DirectoryCollection
from bookie.disk.port import DiskFull
from bookie.errors import StorageFailed
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.entry import encode_lac, parse_header
from ledger.requests import AddRun, HeldQuery, ReadAnswer, ReadQuery, Status
from tests.bookie.machine import Machine
from tests.bookie.promises import COLLECTOR, EVERYTHING, KEY, SMALL, entries_of, frame_of, run_of
from tests.bookie.tally import tally
from tests.simulation.disk import Loss, PowerLost

pytestmark = pytest.mark.slow

MODEL_S: Final = float(os.environ.get("DLOG_TEST_MODEL_S", "0"))
LEDGERS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 11, 259)
ENTRY_MAX: Final = 300
"""Three pages of the index."""
OTHER_KEY: Final = b"x" * 16


@dataclass(slots=True)
class Ledger:
    """What is true of one ledger."""

    entries: dict[int, bytes] = field(default_factory=dict)
    durable: dict[int, bytes] = field(default_factory=dict)
    fenced: bool = False
    fence_durable: bool = False
    lac: int = -2
    lac_durable: int = -2
    lacs_sent: list[int] = field(default_factory=lambda: [-2])

    @property
    def must_be(self) -> bool:
        """Whether it may not be forgotten by a crash."""
        return bool(self.durable) or self.fence_durable or self.lac_durable > -2


@dataclass(frozen=True, slots=True)
class Waiting:
    """An answer that is given when *ticket* is durable."""

    ticket: int
    ledger_id: int
    run: dict[int, bytes]
    """Nothing: it is a fence."""


ledger_ids = st.sampled_from(LEDGERS)
entry_ids = st.integers(0, ENTRY_MAX)
losses = st.sampled_from(Loss)


class StorageModel(RuleBasedStateMachine):
    storage: BookieStorage

    @initialize(
        several=st.booleans(),
        recent_bytes_max=st.sampled_from((0, 3000, 1 << 20)),
        memtable_bytes_max=st.sampled_from((4000, 64 * 1024)),
        seed=st.integers(0, 1 << 16),
    )
    def begin(
        self, several: bool, recent_bytes_max: int, memtable_bytes_max: int, seed: int
    ) -> None:
        self.machine = Machine(seed, several=several)
        self.config: StorageConfig = replace(
            SMALL, recent_bytes_max=recent_bytes_max, memtable_bytes_max=memtable_bytes_max
        )
        self.model: dict[int, Ledger] = {}
        self.deleting: dict[int, None] = {}
        """Ledgers whose deletion was begun and not seen to end; they may be there or not."""
        self.deleted: dict[int, None] = {}
        self.evicting: dict[int, None] = {}
        """Ledgers whose eviction was begun and not seen to end; they are there wholly or not."""
        self.evicted: dict[int, None] = {}
        """Ledgers that were, at some time: if they come back they are fenced."""
        self.sent: dict[tuple[int, int], list[bytes]] = {}
        self.waiting: list[Waiting] = []
        self.lacs_begun: dict[int, int] | None = None
        self.troubled = False
        self.storage = BookieStorage.open(self.machine.directories, self.config)

    def teardown(self) -> None:
        if hasattr(self, "machine"):
            tally["model: steps"] += 1
            self.machine.heal()
            self.restart(Loss.LOST)

    # Adding.

    @rule(
        ledger_id=ledger_ids,
        first=entry_ids,
        count=st.integers(1, 40),
        step=st.sampled_from((1, 1, 1, 2, 50)),
        recovery=st.booleans(),
        salt=st.sampled_from((0, 0, 0, 0, 1)),
    )
    def add(
        self, ledger_id: int, first: int, count: int, step: int, recovery: bool, salt: int
    ) -> None:
        self._add(ledger_id, range(first, first + count * step, step), recovery, salt)

    @rule(ledger_id=ledger_ids, count=st.integers(1, 60))
    def append(self, ledger_id: int, count: int) -> None:
        ledger = self.model.get(ledger_id, Ledger())
        first = max(ledger.entries, default=-1) + 1
        self._add(ledger_id, range(first, first + count), recovery=False, salt=0)

    @rule(ledger_id=ledger_ids, recovery=st.booleans())
    def fence(self, ledger_id: int, recovery: bool) -> None:
        if not self._is_usable(ledger_id):
            return
        status, ticket = self.storage.fence(ledger_id, KEY)
        assert status is Status.OK
        ledger = self.model.setdefault(ledger_id, self._new(ledger_id))
        ledger.fenced = True
        self.waiting.append(Waiting(ticket, ledger_id, {}))

    @rule(ledger_id=ledger_ids, lac=st.integers(-1, ENTRY_MAX), recovery=st.booleans())
    def set_lac(self, ledger_id: int, lac: int, recovery: bool) -> None:
        if not self._is_usable(ledger_id):
            return
        frame = encode_lac(ledger_id=ledger_id, last_add_confirmed=lac, length=1)
        run = AddRun(ledger_id, KEY, (-1,), (len(frame),), frame, recovery, explicit_lac=True)
        status = self.storage.set_lac(run)
        ledger = self.model.get(ledger_id, self._new(ledger_id))
        if ledger.fenced and not recovery:
            assert status is Status.FENCED
            return
        assert status is Status.OK
        self.model[ledger_id] = ledger
        ledger.lac = max(ledger.lac, lac)
        ledger.lacs_sent.append(lac)

    @rule(ledger_id=ledger_ids)
    def use_another_key(self, ledger_id: int) -> None:
        if ledger_id not in self.model:
            return
        run = replace(run_of(ledger_id, 0), key=OTHER_KEY)
        assert self.storage.add(run) == (Status.WRONG_KEY, 0)
        assert self.storage.fence(ledger_id, OTHER_KEY) == (Status.WRONG_KEY, 0)
        assert self.storage.lac(ledger_id, OTHER_KEY).status is Status.WRONG_KEY
        assert self.storage.read(ReadQuery(ledger_id, OTHER_KEY, 0, 1)).status is Status.WRONG_KEY

    def _add(self, ledger_id: int, entries: range, recovery: bool, salt: int) -> None:
        if not self._is_usable(ledger_id):
            return
        frames = {entry: frame_of(ledger_id, entry, salt=salt) for entry in entries}
        for entry, frame in frames.items():
            self.sent.setdefault((ledger_id, entry), []).append(frame)
        read_only = self.storage.read_only
        run = run_of(ledger_id, *entries, recovery=recovery, salt=salt)
        status, ticket = self.storage.add(run)
        ledger = self.model.get(ledger_id, self._new(ledger_id))
        here = {entry for entry in entries if entry in ledger.entries}
        if ledger.fenced and not recovery:
            assert status is Status.FENCED
        elif read_only and not recovery:
            assert status is Status.READ_ONLY
        elif status is Status.TOO_MANY_REQUESTS:
            assert self.storage.troubles or len(self.storage._memory.active), "there was room"
        elif any(ledger.entries[entry] != frames[entry] for entry in here):
            assert status is Status.CONFLICT
        else:
            assert status is Status.OK
            self.model[ledger_id] = ledger
            ledger.entries.update(frames)
            if len(here) < len(frames):
                ledger.lac = max(ledger.lac, entries[-1] - 1)
            self.waiting.append(Waiting(ticket, ledger_id, frames))

    def _new(self, ledger_id: int) -> Ledger:
        """Return what is made of a ledger that is not here."""
        return Ledger(fenced=ledger_id in self.evicted)

    def _is_usable(self, ledger_id: int) -> bool:
        """Whether the ledger was never deleted. One that was is not there for anybody."""
        if ledger_id in self.deleted:
            gone = Status.NO_SUCH_LEDGER
            status, _ = self.storage.add(run_of(ledger_id, 0, recovery=True))
            # A disk that was full is taken for full until a checkpoint has found space.
            full = self.storage.troubles and status is Status.TOO_MANY_REQUESTS
            assert full or status is gone
            assert self.storage.fence(ledger_id, KEY) == (gone, 0)
            assert self.storage.lac(ledger_id, KEY).status is gone
            assert self.storage.read(ReadQuery(ledger_id, KEY, 0, 9)).status is gone
        return ledger_id not in self.deleted and ledger_id not in self.deleting

    # Keeping.

    @rule(journal=st.integers(0, 1))
    def commit(self, journal: int) -> None:
        self._commit(journal % self.storage.journals)

    @rule()
    def commit_all(self) -> None:
        for journal in range(self.storage.journals):
            self._commit(journal)
        assert self.machine.is_full or not self.waiting

    @rule(ledger_ids=st.lists(ledger_ids, min_size=1, max_size=4), count=st.integers(1, 60))
    def work(self, ledger_ids: list[int], count: int) -> None:
        for ledger_id in ledger_ids:
            self.append(ledger_id, count)
            self.commit_all()
        self.checkpoint()

    @rule()
    def checkpoint(self) -> None:
        try:
            self._checkpoint()
        except StorageFailed:
            assert self.troubled
            self.restart(Loss.TORN)

    def _commit(self, journal: int) -> None:
        try:
            durable = self.storage.commit(journal)
        except StorageFailed:
            assert self.troubled
            self.restart(Loss.TORN)
            return
        for waiting in self.waiting:
            if waiting.ticket <= durable:
                ledger = self.model[waiting.ledger_id]
                ledger.durable.update(waiting.run)
                ledger.fence_durable |= not waiting.run
        self.waiting = [waiting for waiting in self.waiting if waiting.ticket > durable]

    def _checkpoint(self) -> None:
        if self.lacs_begun is None:
            self.lacs_begun = {ledger_id: one.lac for ledger_id, one in self.model.items()}
        self.storage.checkpoint()
        if any("checkpoint" in one or "failed" in one for one in self.storage.troubles):
            tally["model: checkpoints on a full or broken disk"] += 1
        else:
            tally["model: checkpoints"] += 1
            for ledger_id, lac in self.lacs_begun.items():
                if ledger_id in self.model:
                    ledger = self.model[ledger_id]
                    ledger.lac_durable = max(ledger.lac_durable, lac)
            self.lacs_begun = None

    # Deleting and collecting.

    @rule(ledger_id=ledger_ids, lot=st.integers(0, 2))
    def delete(self, ledger_id: int, lot: int) -> None:
        """Not too often: a ledger that was deleted is of little use."""
        if lot == 0:
            self._delete(ledger_id)

    @rule(share=st.sampled_from((0.0, 0.3, 0.99)))
    def collect(self, share: float) -> None:
        for directory in self.storage.ledger_directories:
            collection = DirectoryCollection(directory, COLLECTOR, self.storage.ledger_ids)
            try:
                for _ in collection.run(share):
                    pass
            except DiskFull:
                assert self.machine.is_full
            except OSError:
                assert self.troubled
            assert not collection.report.damages
            tally["model: logs collected"] += collection.report.logs_removed

    def _delete(self, *ledger_ids: int) -> None:
        """Together with those that could not be deleted yet."""
        for ledger_id in ledger_ids:
            if ledger_id in self.model:
                self.deleting[ledger_id] = None
                del self.model[ledger_id]
        self.waiting = [one for one in self.waiting if one.ledger_id not in self.deleting]
        here = [one for one in self.deleting if one in self.storage.ledger_ids()]
        try:
            self.storage.delete(list(self.deleting))
        except DiskFull:
            assert self.machine.is_full
            return
        except StorageFailed:
            assert self.troubled
            self.restart(Loss.TORN)
            return
        if not any("failed" in trouble for trouble in self.storage.troubles):
            self.deleted.update(dict.fromkeys(here))
            self.deleting = {one: None for one in self.deleting if one not in here}

    @rule(ledger_id=ledger_ids, promises=st.sampled_from((0, 0, 1)))
    def evict(self, ledger_id: int, promises: int) -> None:
        self._evict(ledger_id, promises)

    def _evict(self, ledger_id: int, promises: int) -> None:
        """*promises*: something, between the offer and the eviction."""
        if ledger_id not in self.model:
            return
        offer = self.storage.offer([ledger_id])
        if promises:
            before = len(self.waiting)
            self._add(ledger_id, range(3), recovery=True, salt=0)
            promises = len(self.waiting) - before
        self.evicting[ledger_id] = None
        try:
            self.storage.evict([ledger_id], offer)
        except DiskFull:
            assert self.machine.is_full
            self._learn_evicted()
            return
        except StorageFailed:
            assert self.troubled
            self.restart(Loss.TORN)
            return
        if ledger_id not in self.storage.ledger_ids():
            assert not promises, "something was promised of it"
            self.evicted[ledger_id] = None
            del self.model[ledger_id]
            self.waiting = [one for one in self.waiting if one.ledger_id != ledger_id]
            if self.lacs_begun is not None:  # of a checkpoint that waits for space
                self.lacs_begun.pop(ledger_id, None)
            tally["model: ledgers evicted"] += 1
        self._learn_evicted()

    def _learn_evicted(self) -> None:
        """It may have been remembered that a ledger is evicted, and that not have happened."""
        known = [one for one in LEDGERS if self.storage._holdings.is_fenced(one)]
        assert dict.fromkeys(known).keys() >= self.evicted.keys(), "an eviction was forgotten"
        assert self.evicted.keys() | self.evicting.keys() >= dict.fromkeys(known).keys()
        self.evicted = dict.fromkeys(known)
        self.evicting.clear()

    # Reading.

    @rule(
        ledger_id=ledger_ids,
        first=entry_ids,
        count=st.integers(1, ENTRY_MAX),
        bytes_max=st.sampled_from((0, 1, 200, 1000, 1 << 20)),
    )
    def read(self, ledger_id: int, first: int, count: int, bytes_max: int) -> None:
        query = ReadQuery(ledger_id, KEY, first, first + count - 1, bytes_max)
        self._check_answer(query, self.storage.read(query))
        recent = self.storage.read_recent(query)
        if recent is not None:
            self._check_answer(query, recent)

    @rule(ledger_id=ledger_ids, back=st.integers(0, 5))
    def tail(self, ledger_id: int, back: int) -> None:
        last = max(self.model.get(ledger_id, Ledger()).entries, default=0)
        query = ReadQuery(ledger_id, KEY, max(0, last - back), EVERYTHING)
        self._check_answer(query, self.storage.read(query))
        recent = self.storage.read_recent(query)
        if recent is not None:
            self._check_answer(query, recent)

    @rule(
        ledger_id=ledger_ids,
        first=entry_ids,
        count=st.integers(1, ENTRY_MAX),
        ranges_max=st.sampled_from((1, 2, 1000)),
    )
    def list_held(self, ledger_id: int, first: int, count: int, ranges_max: int) -> None:
        """One answer after the other until all is listed."""
        if not self._is_usable(ledger_id):
            return
        last = first + count - 1
        ledger, found = self.model.get(ledger_id), list[int]()
        while first <= last:
            answer = self.storage.held(HeldQuery(ledger_id, KEY, first, last, ranges_max))
            assert (answer.status is Status.OK) == (ledger is not None)
            assert first <= answer.considered == answer.listed <= last
            assert len(answer.firsts) <= ranges_max
            found += [each for a, b in answer.ranges() for each in range(a, b + 1)]
            first = answer.listed + 1
        wanted = ledger.entries if ledger else ()
        assert found == sorted(each for each in wanted if last - count < each <= last)

    @rule(ledger_id=ledger_ids)
    def read_lac(self, ledger_id: int) -> None:
        if not self._is_usable(ledger_id):
            return
        answer = self.storage.lac(ledger_id, KEY)
        ledger = self.model.get(ledger_id)
        if ledger is None:
            assert answer.status is Status.NO_SUCH_LEDGER
            return
        assert answer.status is Status.OK
        assert answer.fenced == ledger.fenced
        assert answer.last_entry == max(ledger.entries, default=-1)
        assert _lac_of(answer.lac_proof) == ledger.lac

    def _check_answer(self, query: ReadQuery, answer: ReadAnswer) -> None:
        if not self._is_usable(query.ledger_id):
            return
        ledger = self.model.get(query.ledger_id)
        if ledger is None:
            assert answer.status is Status.NO_SUCH_LEDGER
            return
        assert answer.status is Status.OK
        assert query.first - 1 <= answer.considered <= query.last
        found = {entry: bytes(frame) for entry, frame in answer.each()}
        within = range(query.first, answer.considered + 1)
        assert list(found) == sorted(entry for entry in ledger.entries if entry in within)
        assert all(frame == ledger.entries[entry] for entry, frame in found.items())
        assert answer.considered >= query.first, "no progress"
        assert len(found) <= 1 or len(answer.frames) <= query.bytes_max
        assert answer.fenced == ledger.fenced
        assert _lac_of(answer.lac_proof) == ledger.lac

    # Trouble.

    @rule(at=st.integers(0, 4), left_bytes=st.sampled_from((0, 500, 3000)))
    def fill_up(self, at: int, left_bytes: int) -> None:
        self.machine.fill_up(at, left_bytes=left_bytes)

    @rule(
        at=st.integers(0, 4),
        left_bytes=st.sampled_from((0, 500, 3000)),
        ledger_id=ledger_ids,
        turns=st.integers(1, 3),
    )
    def work_on_a_full_disk(self, at: int, left_bytes: int, ledger_id: int, turns: int) -> None:
        for _ in range(turns):
            self.append(ledger_id, 10)
            self.commit_all()
            self.fill_up(at, left_bytes)
            self.append(ledger_id, 10)
            self.checkpoint()
            self.tail(ledger_id, 40)
            self.read(ledger_id, 0, ENTRY_MAX, 1000)

    @precondition(lambda self: self.machine.is_full)
    @rule()
    def make_space(self) -> None:
        self.machine.make_space()
        if self.troubled:
            return
        for journal in range(self.storage.journals):
            self._commit(journal)
        for _ in range(2):  # the first may end what was begun on the full disk
            self._checkpoint()
        assert not self.storage.read_only, self.storage.troubles
        assert not self.waiting

    @rule(loss=losses)
    def crash(self, loss: Loss) -> None:
        self.restart(loss)

    @rule(checkpoint=st.booleans())
    def stop_and_start(self, checkpoint: bool) -> None:
        if checkpoint:
            with suppress(StorageFailed):
                self._checkpoint()
        self.storage.close()
        self.restart(None)

    @rule(
        after=st.integers(1, 30),
        first=st.sampled_from(("checkpoint", "delete", "evict", "collect", "add")),
        loss=losses,
        ledger_id=ledger_ids,
    )
    def crash_while_it_works(self, after: int, first: str, loss: Loss, ledger_id: int) -> None:
        self.machine.crash_at = self.machine.operations + after
        with suppress(PowerLost):
            if first == "checkpoint":
                self.checkpoint()
            elif first == "delete":
                self._delete(ledger_id)
            elif first == "evict":
                self._evict(ledger_id, 0)
            elif first == "collect":
                self.collect(0.99)
            self.append(ledger_id, 30)
            self.commit_all()
            self.checkpoint()
        self.restart(loss)

    @rule(after=st.integers(1, 40), first=st.none() | losses, second=losses)
    def crash_while_it_recovers(self, after: int, first: Loss | None, second: Loss) -> None:
        if first is None:
            self.machine.kill()
        else:
            self.machine.crash(first)
        self.machine.crash_at = self.machine.operations + after
        with suppress(PowerLost, StorageFailed):
            BookieStorage.open(self.machine.directories, self.config).close()
        self.restart(second)

    @rule(
        at=st.integers(0, 4),
        operation=st.sampled_from(("write", "sync", "create", "sync_directory", "rename")),
        path=st.sampled_from(("journal/", "entrylog", "index")),
    )
    def break_a_disk(self, at: int, operation: str, path: str) -> None:
        """The next such operation fails; what it hits is over until a restart."""
        disk = self.machine.disks[at % len(self.machine.disks)]
        disk.fail(operation, path)
        self.troubled = True

    def restart(self, loss: Loss | None) -> None:
        """None: a clean stop."""
        tally["model: restarts"] += 1
        self.waiting.clear()
        self.lacs_begun = None
        if loss is None:
            self.machine.kill()
        else:
            self.machine.crash(loss)
        for disk in self.machine.disks:
            disk._failing.clear()
        self.troubled = False
        try:
            self.storage = BookieStorage.open(self.machine.directories, self.config)
        except StorageFailed as failure:
            if not self.machine.is_full or not isinstance(failure.__cause__, DiskFull):
                raise
            self.machine.make_space()
            self.machine.kill()
            self.storage = BookieStorage.open(self.machine.directories, self.config)
        self._learn()

    def _learn(self) -> None:
        """Compare what survived with what had to, and take it for the truth."""
        here = self.storage.ledger_ids()
        for ledger_id in LEDGERS:
            if ledger_id in self.deleting or ledger_id in self.deleted:
                continue
            was = self.model.get(ledger_id, Ledger())
            if ledger_id not in here:
                may_be_gone = ledger_id in self.evicting
                if ledger_id in self.evicted:  # the fence is remembered apart
                    was.fence_durable = False
                assert may_be_gone or not was.must_be, f"ledger {ledger_id} is lost"
                self.model.pop(ledger_id, None)
                continue
            assert ledger_id in self.model or any(one == ledger_id for one, _ in self.sent)
            found = entries_of(self.storage, ledger_id)
            for entry, frame in was.durable.items():
                assert found.get(entry) == frame, f"entry {ledger_id}/{entry} is lost"
            for entry, frame in found.items():
                assert frame in self.sent[ledger_id, entry], f"{ledger_id}/{entry} is strange"
            answer = self.storage.lac(ledger_id, KEY)
            assert answer.fenced or not was.fence_durable, f"{ledger_id} lost its fence"
            fenced = was.fenced or ledger_id in self.evicted or ledger_id in self.evicting
            assert fenced or not answer.fenced, f"{ledger_id} was never fenced"
            lac = _lac_of(answer.lac_proof)
            lacs = [parse_header(frame).last_add_confirmed for frame in found.values()]
            assert lac >= max((was.lac_durable, *lacs)), f"the LAC of {ledger_id} fell"
            assert lac in (*was.lacs_sent, *lacs) or self._was_sent(ledger_id, lac), (
                f"the LAC of {ledger_id} was never sent"
            )
            self.model[ledger_id] = Ledger(
                found, dict(found), answer.fenced, answer.fenced, lac, lac, [*was.lacs_sent, lac]
            )

        self._learn_evicted()

    def _was_sent(self, ledger_id: int, lac: int) -> bool:
        """Whether a frame carried it; what one proved that a crash has taken stays true."""
        return any(
            parse_header(frame).last_add_confirmed == lac
            for (one, _), frames in self.sent.items()
            if one == ledger_id
            for frame in frames
        )

    @invariant()
    def it_lists_what_is_here(self) -> None:
        if hasattr(self, "storage"):
            here = [one for one in self.storage.ledger_ids() if one not in self.deleting]
            assert here == sorted(self.model)
            tally["model: steps"] += 1


def _lac_of(proof: bytes) -> int:
    return parse_header(proof).last_add_confirmed if proof else -2


def _run(*, examples: int, steps: int, derandomize: bool) -> None:
    run_state_machine_as_test(
        StorageModel,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=derandomize,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=not derandomize,
        ),
    )


@pytest.mark.timeout(MODEL_S + 600)
def test_the_storage_is_a_dictionary_that_survives_everything() -> None:
    if not MODEL_S:
        _run(examples=60, steps=50, derandomize=True)
        return
    end = time.monotonic() + MODEL_S
    while time.monotonic() < end:
        _run(examples=50, steps=100, derandomize=False)
