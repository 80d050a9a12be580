"""A bookie that may have lost something: what it finds missing, what it says, and how that ends."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from bookie.collector.garbage import StoreMemory
from bookie.disk.port import Directories
from bookie.errors import StoreNotBelieved
from bookie.index.format import path_of
from bookie.loss.census import LIMBO_PATH, LOGS_PATH, ROLL_PATH, Accounts, Roll, read_census
from bookie.loss.limbo import Limbo, LimboPhase
from bookie.server.loss_resolver import LossResolver, doubtful_of, listed, look
from bookie.storage.engine import BookieStorage
from ledger.cluster import make_namespace
from ledger.errors import DamagedMetadata
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.manager import LedgerStore
from ledger.manager.layout import LAYOUTS
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.metastore.memory import MemoryStore
from ledger.quorum import Quorum
from ledger.requests import HeldAnswer, HeldQuery, LacAnswer, ReadAnswer, ReadQuery, Status
from tests.bookie.machine import JOURNALS, LEDGER_DIRECTORIES, Machine
from tests.bookie.promises import KEY, SMALL, Promises, run_of
from tests.ledger.flaky_store import LyingStore
from tests.simulation.disk import SimDisk

WHY = "a file is gone"


def used_bookie() -> Promises:
    """Ledger 1 on disk, 2 too and fenced, 3 in the journal only."""
    promises = Promises(SimDisk(3))
    promises.open()
    promises.add(1, *range(20))
    promises.add(2, *range(20))
    promises.fence(2)
    promises.commit()
    promises.checkpoint()
    promises.add(5, 0)
    promises.commit()
    promises.checkpoint()  # what the redo file has is another ledger's
    promises.add(1, *range(20, 25))
    promises.add(3, 0, 1)
    promises.commit()
    return promises


def lose(disk: SimDisk, prefix: str) -> None:
    for path in disk.files():
        if path.startswith(prefix):
            disk.lose(path)


def journals(disk: SimDisk) -> list[str]:
    return [path for path in disk.files() if path.endswith(".journal")]


def restarted(promises: Promises) -> BookieStorage:
    promises.disk.kill()
    promises.open()
    return promises.storage


def listed_by(storage: BookieStorage, ledger_id: int, first: int = 0) -> HeldAnswer:
    return storage.held(HeldQuery(ledger_id, KEY, first, 30))


def ask(storage: BookieStorage, ledger_id: int, first: int = 0) -> ReadAnswer:
    return storage.read(ReadQuery(ledger_id, KEY, first, 30, 1 << 20))


def test_an_index_that_is_lost_is_missed_also_if_the_redo_file_has_some_of_it() -> None:
    promises = used_bookie()
    promises.checkpoint()
    promises.storage.close()
    promises.config = replace(SMALL, index_in_place_ledgers=0)
    promises.open()
    promises.add(1, *range(200, 210))
    promises.commit()
    promises.checkpoint()
    assert 1 in promises.storage.ledger_directories[0].index.redo
    lose(promises.disk, path_of(1))
    storage = restarted(promises)
    assert storage.limbo is not None
    assert ask(storage, 1).status is Status.UNKNOWN
    assert storage.add(run_of(1, 0, recovery=True))[0] is Status.OK, "it is mended as any entry is"


def test_what_is_held_is_listed_in_limbo_and_nothing_doubtful_is_denied() -> None:
    promises = used_bookie()
    promises.add(5, 3, 4)
    promises.commit()
    lose(promises.disk, path_of(2))
    storage = restarted(promises)
    assert storage.limbo is not None
    held = listed_by(storage, 5)
    assert (held.status, held.considered) == (Status.OK, 0), "its first no ends what it denies"
    assert (list(held.ranges()), held.listed) == ([(0, 0), (3, 4)], 30)
    unknown = listed_by(storage, 5, first=2)
    assert (unknown.status, unknown.considered) == (Status.UNKNOWN, 1)
    assert (list(unknown.ranges()), unknown.listed) == ([(3, 4)], 30)
    gone = listed_by(storage, 2)
    assert (gone.status, gone.considered, list(gone.ranges())) == (Status.UNKNOWN, -1, [])
    storage.judged(lambda limbo: limbo.known([1, 2, 3, 5], [2]))
    assert listed_by(storage, 2).status is Status.UNKNOWN
    assert listed_by(storage, 5).considered == 30, "closed, or not its own: it denies again"


def test_a_bookie_that_lost_nothing_is_not_in_limbo() -> None:
    promises = used_bookie()
    assert restarted(promises).limbo is None
    promises.check()


@pytest.mark.parametrize("at", range(LEDGER_DIRECTORIES))
def test_an_older_state_of_one_ledger_directory_is_missed_also_if_no_ledger_was_made_since(
    at: int,
) -> None:
    """A snapshot of its device, of this very life: neither cookie nor census is on it."""
    machine, ledger_ids = Machine(several=True), range(1, 13)
    storage = BookieStorage.open(machine.directories, SMALL)
    older = SimDisk()
    for entry_id in (0, 1):
        older = machine.disks[JOURNALS + at].copy()
        for ledger_id in ledger_ids:
            storage.add(run_of(ledger_id, entry_id))
        for journal in range(JOURNALS):
            storage.commit(journal)
        storage.checkpoint()
    disks = [disk.copy() for disk in machine.disks]
    whole = BookieStorage.open(directories_of(disks), SMALL)
    assert whole.limbo is None
    disks = [disk.copy() for disk in machine.disks]
    disks[JOURNALS + at] = older
    back = BookieStorage.open(directories_of(disks), SMALL)
    assert {ask(back, one, 1).status for one in ledger_ids} == {Status.OK, Status.UNKNOWN}
    assert all(1 in a.entries for one in ledger_ids if (a := ask(back, one, 1)).considered >= 1)


def directories_of(disks: list[SimDisk]) -> Directories:
    return Directories(disks[0], tuple(disks[:JOURNALS]), tuple(disks[JOURNALS:]))


def test_one_lost_index_file_is_missed_and_what_it_named_is_not_denied() -> None:
    promises = used_bookie()
    lose(promises.disk, "index/02/")
    storage = restarted(promises)
    assert ask(storage, 2).status is Status.UNKNOWN
    assert storage.lac(2, KEY).status is Status.UNKNOWN
    assert storage.add(run_of(2, 20)) == (Status.READ_ONLY, 0)
    assert list(ask(storage, 1).entries) == list(range(25))
    assert "1 ledgers that is gone: 2" in storage.doubts


def test_an_index_that_is_lost_with_its_roll_is_missed() -> None:
    promises = used_bookie()
    lose(promises.disk, "index/")
    storage = restarted(promises)
    assert {ask(storage, ledger_id).status for ledger_id in (1, 2)} == {Status.UNKNOWN}


def test_the_newest_of_several_journal_files_is_missed() -> None:
    promises = used_bookie()
    for first in range(0, 300, 10):
        promises.add(4, *range(first, first + 10))
        promises.commit()
    assert len(journals(promises.disk)) > 1
    promises.disk.kill()
    promises.disk.lose(journals(promises.disk)[-1])
    storage = restarted(promises)
    answer = storage.read(ReadQuery(4, KEY, 0, 1000, 1 << 20))
    assert answer.considered == answer.entries[-1] < 299
    assert storage.read(ReadQuery(4, KEY, answer.considered + 1, 1000)).status is Status.UNKNOWN


@pytest.mark.parametrize("left", [500, 700])
def test_a_journal_that_was_shortened_is_missed(left: int) -> None:
    promises = used_bookie()
    promises.disk.kill()
    newest = journals(promises.disk)[-1]
    assert len(promises.disk.content(newest)) > left
    promises.disk.cut(newest, left)
    storage = restarted(promises)
    assert storage.limbo is not None
    assert ask(storage, 3).status in {Status.UNKNOWN, Status.OK}


@pytest.mark.parametrize("lost", ["census", LIMBO_PATH])
def test_limbo_does_not_end_with_the_files_that_tell_of_it(lost: str) -> None:
    promises = used_bookie()
    lose(promises.disk, "index/02/")
    restarted(promises).judged(lambda limbo: limbo.known([1, 2, 3], [2]))
    assert restarted(promises).limbo == Limbo(
        promises.storage.doubts.split(": ", 2)[2],
        LimboPhase.SETTLING,
        before=promises.storage.limbo.before,  # type: ignore[union-attr]
        doubtful=frozenset({2}),
    )
    promises.disk.kill()
    promises.disk.lose(lost)
    limbo = restarted(promises).limbo
    assert limbo is not None
    assert limbo.phase is LimboPhase.BEGUN


def test_a_doubt_is_remembered_by_the_next_starts() -> None:
    disk = SimDisk(1)
    storage = BookieStorage.open(disk, SMALL, doubt=WHY)
    assert storage.read_only
    assert WHY in storage.troubles[0]
    storage.close()
    again = BookieStorage.open(disk, SMALL)
    assert again.limbo == Limbo(WHY)


def test_fences_and_recovery_adds_are_taken_in_limbo() -> None:
    promises = used_bookie()
    lose(promises.disk, "index/02/")
    storage = restarted(promises)
    status, _ = storage.fence(2, KEY)
    assert status is Status.OK
    assert storage.add(run_of(2, 0, recovery=True))[0] is Status.OK
    answer = storage.lac(2, KEY)
    assert (answer.status, answer.fenced) == (Status.UNKNOWN, True)
    assert ask(storage, 2).considered == 0


def test_a_ledger_from_before_never_gets_a_normal_add_again() -> None:
    """Its fence may be what was lost, and its writer may wake up when it is closed for long."""
    promises = used_bookie()
    lose(promises.disk, "index/02/")
    storage = restarted(promises)
    storage.judged(lambda limbo: limbo.known([1, 2, 3], []))
    assert storage.limbo is not None
    assert not storage.read_only
    assert ask(storage, 2).status is Status.NO_SUCH_LEDGER
    for ledger_id in (1, 2, 3):
        assert storage.add(run_of(ledger_id, 25)) == (Status.READ_ONLY, 0)
    assert storage.add(run_of(9, 0))[0] is Status.OK
    storage = restarted(promises)
    assert storage.add(run_of(2, 25)) == (Status.READ_ONLY, 0)
    storage.judged(lambda limbo: limbo.only([9]))
    assert storage.limbo is None
    assert LIMBO_PATH not in promises.disk.files()
    assert restarted(promises).limbo is None


def test_what_is_here_without_a_gap_is_all_that_is_promised() -> None:
    limbo = Limbo(WHY, LimboPhase.SETTLING, doubtful=frozenset({7}))
    answer = ReadAnswer(Status.OK, [3, 4, 6], [1, 1, 1], b"abc", considered=9)
    assert limbo.read(ReadQuery(7, KEY, 3, 9), answer) == replace(answer, considered=4)
    unknown = limbo.read(ReadQuery(7, KEY, 2, 9), answer)
    assert unknown == replace(answer, status=Status.UNKNOWN, considered=1)
    assert limbo.read(ReadQuery(8, KEY, 2, 9), answer) is answer
    nothing = limbo.read(ReadQuery(7, KEY, 2, 9), ReadAnswer(Status.NO_SUCH_LEDGER))
    assert (nothing.status, nothing.considered) == (Status.UNKNOWN, 1)
    damaged = ReadAnswer(Status.IO_ERROR)
    assert limbo.read(ReadQuery(7, KEY, 2, 9), damaged) is damaged
    wrong = LacAnswer(Status.WRONG_KEY)
    assert limbo.lac(7, wrong) is wrong


def test_a_limbo_comes_back_from_its_bytes_and_no_damaged_byte_passes() -> None:
    limbo = Limbo(WHY).known([5, 1, 9], [9, 5])
    data = limbo.encode()
    assert Limbo.decode(data) == limbo
    for at in range(len(data)):
        with pytest.raises(ValueError, match=r"checksum|cut short|version"):
            Limbo.decode(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"checksum|cut short"):
            Limbo.decode(data[:at])


def ledger(*bookies: str, state: LedgerState = LedgerState.OPEN) -> LedgerMetadata:
    fragment = Fragment(EntryId(0), tuple(map(BookieId, bookies)))
    metadata = LedgerMetadata(
        quorum=Quorum(3, 3, 2),
        fragments=(fragment,),
        access_key=KEY,
        creation_token=b"t" * 16,
    )
    if state is LedgerState.CLOSED:
        return metadata.closed(EntryId(3), 30)
    return metadata if state is LedgerState.OPEN else metadata.in_recovery()


@asynccontextmanager
async def namespace(name: str = "limbo") -> AsyncIterator[tuple[LedgerStore, str]]:
    """Yield the ledgers of a new namespace, and its instance."""
    store = MemoryStore(f"memory://{name}", name)
    made = await make_namespace(store, layout="longhierarchical")
    yield LedgerStore(store, "longhierarchical"), made.instance
    await store.close()


@asynccontextmanager
async def opened() -> AsyncIterator[LedgerStore]:
    async with namespace() as (ledgers, _):
        yield ledgers


async def test_doubtful_is_what_is_not_closed_and_ends_on_this_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unreadable(ledger_ids: Iterable[LedgerId]) -> dict[LedgerId, None]:
        return dict.fromkeys(ledger_ids)

    async with opened() as ledgers:
        mine = await ledgers.create(ledger("a", "b", "c"))
        others = await ledgers.create(ledger("b", "c", "d"))
        closed = await ledgers.create(ledger("a", "b", "c", state=LedgerState.CLOSED))
        fenced = await ledgers.create(ledger("a", "b", "c", state=LedgerState.IN_RECOVERY))
        first = ledger("a", "b", "c")
        second = Fragment(EntryId(5), (BookieId("d"), BookieId("b"), BookieId("c")))
        moved = await ledgers.create(replace(first, fragments=(*first.fragments, second)))
        every = await listed(ledgers)
        assert every == [mine, others, closed, fenced, moved]
        assert await doubtful_of(ledgers, "a", [*every, LedgerId(99)]) == [mine, fenced]
        with monkeypatch.context() as patch:
            patch.setattr(ledgers, "read_all", unreadable)
            assert await doubtful_of(ledgers, "a", [others]) == [others]
        doubtful = partial(doubtful_of, ledgers, "a")
        limbo = Limbo(WHY)
        limbo = (await look(limbo, ledgers, doubtful))(limbo)
        assert list(limbo.before) == every
        assert limbo.doubtful == {int(mine), int(fenced)}
        await ledgers.delete(mine)
        metadata, version = await ledgers.read(fenced)
        await ledgers.write(fenced, metadata.closed(EntryId(3), 30), version)
        limbo = (await look(limbo, ledgers, doubtful))(limbo)
        assert limbo.phase is LimboPhase.OVER
        limbo = (await look(limbo, ledgers, doubtful))(limbo)
        assert list(limbo.before) == [others, closed, fenced, moved]


def test_the_settler_ends_limbo_and_tells_it() -> None:
    promises = used_bookie()
    lose(promises.disk, "index/02/")
    storage = restarted(promises)
    told: list[str] = []

    async def scenario() -> LedgerId:
        async with namespace() as (ledgers, instance):
            ledger_id = await ledgers.create(ledger("a", "b", "c", state=LedgerState.CLOSED))
            settler = LossResolver(storage, ledgers, "a", instance=instance, on_change=told.append)
            await settler.run()
            return ledger_id

    ledger_id = asyncio.run(scenario())
    assert storage.limbo is not None
    assert (storage.limbo.phase, list(storage.limbo.before)) == (LimboPhase.OVER, [ledger_id])
    assert told[0].startswith("in limbo: it may have lost data")
    assert told[-1] == ""


@pytest.mark.parametrize("phase", [LimboPhase.BEGUN, LimboPhase.SETTLING, LimboPhase.OVER])
def test_a_namespace_made_anew_ends_no_limbo(phase: LimboPhase) -> None:
    """It has none of the ledgers of the one that the bookie belongs to."""
    promises = used_bookie()
    lose(promises.disk, "index/02/")
    storage = restarted(promises)
    if phase is not LimboPhase.BEGUN:
        doubtful = [2] if phase is LimboPhase.SETTLING else []
        storage.judged(lambda limbo: limbo.known([1, 2, 3], doubtful))
    limbo = storage.limbo
    assert limbo is not None
    assert limbo.phase is phase

    async def scenario() -> None:
        async with namespace() as (_, instance), namespace("anew") as (made_anew, _):
            with pytest.raises(StoreNotBelieved, match="belongs to"):
                await LossResolver(storage, made_anew, "a", instance=instance).look()

    asyncio.run(scenario())
    assert storage.limbo == limbo


def test_an_older_state_of_the_namespace_ends_no_limbo() -> None:
    """A ledger that was made since is not in it, and may come back with the newer one."""
    promises = used_bookie()
    lose(promises.disk, "index/02/")
    storage = restarted(promises)
    limbo = storage.limbo

    async def scenario() -> None:
        async with namespace() as (ledgers, instance):
            remembered = StoreMemory(next_id=1000, deletions=0)
            settler = LossResolver(
                storage, ledgers, "a", instance=instance, seen=lambda: remembered
            )
            with pytest.raises(StoreNotBelieved, match="restored from a backup"):
                await settler.look()

    asyncio.run(scenario())
    assert storage.limbo == limbo


def test_accounts_of_a_new_directory_know_nothing() -> None:
    accounts = Accounts(SimDisk(0))
    assert (accounts.census, accounts.limbo, accounts.losses) == (None, None, [])


async def test_no_ledger_that_the_store_hides_leaves_a_limbo() -> None:
    store = LyingStore()
    await make_namespace(store)
    ledgers = LedgerStore(store, "longhierarchical")
    open_here = LedgerMetadata(
        quorum=Quorum(1, 1, 1), fragments=(Fragment(EntryId(0), (BookieId("a"),)),), access_key=KEY
    )
    ledger_id = await ledgers.create(replace(open_here, creation_token=b"t" * 16))
    path = LAYOUTS["longhierarchical"].path(ledger_id)
    doubtful = partial(doubtful_of, ledgers, "a")
    limbo = Limbo(WHY)
    store.unread.add(path)
    limbo = (await look(limbo, ledgers, doubtful))(limbo)
    assert list(limbo.doubtful) == [ledger_id], "it is listed"
    limbo = (await look(limbo, ledgers, doubtful))(limbo)
    assert list(limbo.doubtful) == [ledger_id], "it is listed still"
    store.unread.clear()
    over = limbo.still([])
    store.unlisted[path] = 1
    assert list((await look(over, ledgers, doubtful))(over).before) == [ledger_id]
    store.is_damaged = True
    for begun in (Limbo(WHY), over):
        with pytest.raises(DamagedMetadata):
            await look(begun, ledgers, doubtful)
    await store.close()


@pytest.mark.parametrize("path", [ROLL_PATH, LOGS_PATH])
def test_a_roll_of_another_bookie_with_as_many_batches_is_a_loss(path: str) -> None:
    """Its number is that of the census; only its chain shows that it is another one."""
    promises, other = used_bookie(), Promises(SimDisk(4))
    other.open()
    for _ in range(3):
        other.add(1, *range(20))
        other.commit()
        other.checkpoint()
    roll = Roll(other.disk, path)
    roll.load(None)
    mine = Roll(promises.disk, path)
    mine.load(None)
    while roll.place.batch < mine.place.batch:
        roll.append()
    promises.storage.close()
    promises.disk.cut(path, 0)
    promises.disk.damage(path, 0, other.disk.content(path))
    promises.open()
    assert promises.storage.limbo is not None
    assert f"{path} is another one than was written" in promises.storage.limbo.reason


def test_each_ledger_directory_has_its_own_roll_in_the_census() -> None:
    """One that took another's would not miss a roll that is gone."""
    machine = Machine(0, several=True)
    promises = Promises(machine)
    promises.open()
    for entry in range(6):  # the first directory comes farthest
        promises.add(2 * LEDGER_DIRECTORIES if entry % 2 else entry, entry)
        promises.commit()
        promises.checkpoint()
    promises.storage.close()
    census = read_census(machine.directories.main)
    assert census is not None
    places = [(rolls.index, rolls.logs) for rolls in census.rolls]
    for disk, (index, logs) in zip(machine.directories.ledgers, places, strict=True):
        roll, log_roll = Roll(disk), Roll(disk, LOGS_PATH)
        assert roll.load(index) == ""
        assert log_roll.load(logs) == ""
        assert (roll.place, log_roll.place) == (index, logs)
    assert len(set(places)) == len(places), "they came to different places"
    promises.open()
    assert promises.storage.limbo is None
