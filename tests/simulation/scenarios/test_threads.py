"""Old bugs of several threads at one ledger's state, as stories: #3806, #4549, #4557, and 4701.

In the ancestor they were the client's: any thread touched a pending add (#3806),
and what was moved out of a lock went by what it had seen under it (#4549, #4557). Here all that
decides about a ledger is on one event loop; that is shown first. Threads meet in the bookie's
storage, which leaves its lock to look at the disk: a thread is held there, and others go on.
The other half of #3806, an answer that overtakes its own question, is in `test_handle.py`.
"""

import asyncio
import sys
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from bookie.disk.port import Directories
from bookie.server.core import AddSession, BookieCore
from bookie.storage.engine import BookieStorage
from ledger.requests import LacQuery, ReadQuery, Status
from tests.bookie.promises import EVERYTHING, KEY, SMALL, Promises, entries_of, frame_of, run_of
from tests.simulation.disk import Loss, SimDisk
from tests.simulation.scenarios.gate import HAS_READ, GatedDisk, change_number, fits
from tests.simulation.scenarios.wire import BOOKIE, DEADLINE_S, served, transport_to
from tests.waiting import PATIENCE_S


def test_3806_everything_that_decides_about_a_ledger_runs_on_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commits and reads happen on threads of their own; what they mean is decided on the loop."""
    deciding: dict[str, set[int]] = {}
    working: set[int] = set()

    def watch(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def watched(*arguments: object, **named: object) -> object:
            deciding.setdefault(f"{owner.__name__}.{name}", set()).add(threading.get_ident())
            return method(*arguments, **named)

        monkeypatch.setattr(owner, name, watched)

    for name in ("add", "committed", "read_lac", "take_changed"):
        watch(BookieCore, name)
    for name in ("offer", "acks"):
        watch(AddSession, name)

    async def scenario() -> None:
        storage = BookieStorage.open(SimDisk(0), SMALL)
        commit = storage.commit

        def watched_commit(journal: int) -> int:
            working.add(threading.get_ident())
            return commit(journal)

        monkeypatch.setattr(storage, "commit", watched_commit)
        answered: set[int] = set()
        async with served(storage) as address, transport_to(address) as transport:
            done = asyncio.Event()
            for entry in range(20):

                def on_done(_: Status, last: bool = entry == 19) -> None:
                    answered.add(threading.get_ident())
                    if last:
                        done.set()

                transport.add(BOOKIE, run_of(1, entry), on_done)
            async with asyncio.timeout(DEADLINE_S):
                await done.wait()
                lac = await transport.read_lac(BOOKIE, LacQuery(1, KEY, fence=True))
            assert (lac.status, lac.last_entry) == (Status.OK, 19)
        assert answered == {threading.get_ident()}

    asyncio.run(scenario())
    assert len(deciding) == 6
    assert set.union(*deciding.values()) == {threading.get_ident()}
    assert working
    assert threading.get_ident() not in working


# The bookie's storage: what left the lock looks again.


def test_4549_an_add_that_left_the_lock_to_look_at_the_disk_looks_again() -> None:
    """1. An add of entries 1 and 2 finds that 1 is not on disk, and reads 2 to compare it.
    2. Meanwhile another add brings other bytes as entry 1, and a checkpoint moves them to disk.
    3. The first one must not go by what it has seen, or entry 1 would change its value."""
    disk = GatedDisk()
    storage = BookieStorage.open(disk, SMALL)
    storage.add(run_of(1, 0, 2))
    storage.commit()
    storage.checkpoint()
    late = run_of(1, 1, 2)
    earlier = run_of(1, 1, salt=1)

    with disk.held(lambda: storage.add(late), at=fits("read", "entrylog/")) as held:
        assert held.arrived
        assert storage.add(earlier)[0] is Status.OK
        storage.commit()
        storage.checkpoint()

    assert held.result == (Status.CONFLICT, 0)
    assert entries_of(storage, 1)[1] == frame_of(1, 1, salt=1)


def test_4549_the_same_add_twice_at_once_is_one_entry() -> None:
    """As above, with the same bytes: sent again because the first answer did not come."""
    disk = GatedDisk()
    storage = BookieStorage.open(disk, SMALL)
    storage.add(run_of(1, 0, 2))
    storage.commit()
    storage.checkpoint()

    with disk.held(lambda: storage.add(run_of(1, 1, 2)), at=fits("read", "entrylog/")) as held:
        assert held.arrived
        status, ticket = storage.add(run_of(1, 1))
        assert status is Status.OK

    assert held.result == (Status.OK, ticket)  # neither is durable before the first is
    storage.commit()
    assert list(entries_of(storage, 1)) == [0, 1, 2]


def test_4557_an_add_that_waits_for_the_disk_does_not_pass_the_fence_that_came_meanwhile() -> None:
    """1. An add needs the ledger's record, which was forgotten, and reads it: not fenced.
    2. Meanwhile the ledger is fenced; that is durable, on disk, and its record forgotten again.
    3. The add must not be taken on the strength of the record that it holds."""
    disk = GatedDisk()
    storage = BookieStorage.open(disk, SMALL)

    def forget_ledger_1(others: range) -> None:
        for ledger_id in others:
            storage.add(run_of(ledger_id, 0))
        storage.commit()
        storage.checkpoint()

    storage.add(run_of(1, 0))
    forget_ledger_1(range(2, 6))

    with disk.held(lambda: storage.add(run_of(1, 1)), at=fits(HAS_READ, "index/")) as held:
        assert held.arrived
        assert storage.fence(1, KEY)[0] is Status.OK
        forget_ledger_1(range(6, 10))

    assert held.result == (Status.FENCED, 0)
    assert list(entries_of(storage, 1)) == [0]


def test_4557_a_reader_that_is_slow_misses_nothing_that_a_checkpoint_moves() -> None:
    """It has seen that memory holds entry 1, and is held on its way to the disk for entry 0.
    When it comes back memory is empty; its answer must have both all the same."""
    disk = GatedDisk()
    storage = BookieStorage.open(disk, SMALL)
    storage.add(run_of(1, 0))
    storage.commit()
    storage.checkpoint()
    storage.add(run_of(1, 1))
    storage.commit()

    query = ReadQuery(1, KEY, 0, 100)
    with disk.held(lambda: storage.read(query), at=fits("read", "entrylog/")) as held:
        assert held.arrived
        storage.checkpoint()
        storage.add(run_of(1, 2))

    assert held.result is not None
    assert held.result.status is Status.OK
    assert list(held.result.entries) == [0, 1]


@pytest.mark.parametrize("end", ["goes on", "goes on, another follows", "power fails"])
def test_4557_what_comes_in_during_a_checkpoint_is_neither_lost_nor_hidden_by_it(end: str) -> None:
    """The sync thread stands before each of its disk operations in turn. Meanwhile there are
    adds, a fence, commits and reads; all that was promised holds then, and after a restart."""
    for number in count():
        disk = GatedDisk()
        promises = Promises(disk)
        promises.open()
        storage = promises.storage
        promises.add(1, 0, 1, 2)
        promises.add(2, 0)
        promises.commit()
        storage.checkpoint()
        promises.add(1, 3, 4)
        promises.add(2, 1)
        promises.commit()

        with disk.held(storage.checkpoint, at=change_number(number)) as held:
            held.power_lost = end == "power fails"
            promises.check()
            promises.add(1, 5)
            promises.add(3, 0)
            promises.fence(2)
            promises.commit()
            promises.check()
        if end != "power fails":
            promises.check()
        if end == "goes on, another follows":
            storage.checkpoint()
            promises.check()
        disk.crash(Loss.LOST)
        promises.open()
        promises.check()

        if not held.arrived:
            assert number > 10, "a checkpoint takes more steps than that"
            return


def test_4557_what_queues_while_the_journal_syncs_is_not_durable_with_it() -> None:
    """The journal thread is held before its sync. Adds go on meanwhile, and are not waited for;
    but the sync that ends now says nothing about them."""
    disk = GatedDisk()
    storage = BookieStorage.open(disk, SMALL)
    _, first = storage.add(run_of(1, 0))

    with disk.held(storage.commit, at=fits("sync", "journal/")) as held:
        assert held.arrived
        status, second = storage.add(run_of(1, 1))
        assert status is Status.OK
        _, fence = storage.fence(1, KEY)
        recent = storage.read_recent(ReadQuery(1, KEY, 0, EVERYTHING))
        assert recent is not None
        assert list(recent.entries) == [0, 1]

    assert held.result is not None
    assert first <= held.result < second < fence
    disk.crash(Loss.LOST)
    storage = BookieStorage.open(disk, SMALL)
    assert list(entries_of(storage, 1)) == [0]
    assert not storage.lac(1, KEY).fenced


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("where", ["nowhere", "on disk"])
def test_4701_a_fence_and_an_add_that_meet_at_a_ledger_see_each_other(
    where: str, hasty_threads: None
) -> None:
    """Two handles of one ledger, each with a lock of its own, let an add pass a fence. Here two
    threads meet at ledgers that are not in memory: either the fence's reader finds the entry, or
    the writer is refused."""
    storage = BookieStorage.open(Directories.single(SimDisk(0)), SMALL)
    ledgers = range(1, 61)
    first = 0
    if where == "on disk":
        for ledger_id in ledgers:
            storage.add(run_of(ledger_id, 0))
        storage.commit()
        storage.checkpoint()
        first = 1
    meeting = threading.Barrier(2)
    statuses: dict[int, Status] = {}

    def write() -> None:
        for ledger_id in ledgers:
            meeting.wait(PATIENCE_S)
            statuses[ledger_id], _ = storage.add(run_of(ledger_id, first))

    writing = threading.Thread(target=write)
    writing.start()
    found: dict[int, bool] = {}
    for ledger_id in ledgers:
        meeting.wait(PATIENCE_S)
        status, _ = storage.fence(ledger_id, KEY)
        assert status is Status.OK
        answer = storage.read(ReadQuery(ledger_id, KEY, first, first))
        found[ledger_id] = list(answer.entries) == [first]
    writing.join()
    acknowledged = {ledger_id: status is Status.OK for ledger_id, status in statuses.items()}
    assert acknowledged == found
    assert set(statuses.values()) <= {Status.OK, Status.FENCED}
    storage.close()
