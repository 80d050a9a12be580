"""The index made anew: everything is there again, every ledger is fenced, no crash hurts."""

from contextlib import suppress
from pathlib import Path

import pytest

from bookie.disk.port import Directories
from bookie.entrylog.format import HEADER_BYTES
from bookie.entrylog.writer import LogFile
from bookie.errors import DirectoriesChanged, DirectoryMisplaced, ForeignCluster, IndexDamaged
from bookie.identity.stamp import identify
from bookie.index.format import EXTENTS_MAX
from bookie.index.tombstones import PATH as TOMBSTONES
from bookie.index.tombstones import Tombstones
from bookie.loss.census import LOGS_PATH
from bookie.pieces import whole
from bookie.storage.engine import BookieStorage
from bookie.tools.check import check
from bookie.tools.offline import RebuildRefused
from bookie.tools.rebuild import ENTRIES_IN_MEMORY_MAX, Rebuilt, rebuild
from bookie.tools.rebuild_plan import StoreLedgers, store_ledgers
from ledger.cluster import make_namespace
from ledger.entry import Checked, check_frames
from ledger.errors import MetadataUnavailable
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.manager import LedgerStore
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore import open_store
from ledger.quorum import Quorum
from ledger.requests import ReadQuery, Status
from tests.bookie.promises import KEY, SMALL, Promises, entries_of, frame_of, run_of
from tests.simulation.disk import Loss, PowerLost, SimDisk

LEDGERS = (1, 2, 259)
STORED = StoreLedgers(dict.fromkeys((*LEDGERS, 5), KEY), frozenset((*LEDGERS, 5)))


def used_bookie() -> Promises:
    """Entries on disk, and entries in the journal only; fences in both."""
    promises = Promises(SimDisk(0))
    promises.open()
    for ledger_id in LEDGERS:
        promises.add(ledger_id, *range(0, 300, 1 + ledger_id % 2))
    promises.fence(2)
    promises.commit()
    promises.storage.checkpoint()
    for entry in range(300, 306):
        promises.add(1, entry)
        promises.commit()
    promises.fence(259)
    promises.commit()
    promises.storage.close()
    return promises


def rebuilt(
    disk: SimDisk,
    stored: StoreLedgers | None = STORED,
    *,
    entries_in_memory_max: int = ENTRIES_IN_MEMORY_MAX,
) -> Rebuilt:
    directories = Directories.single(disk)
    return rebuild(directories, stored, entries_in_memory_max=entries_in_memory_max)


def index_files(disk: SimDisk) -> list[str]:
    return [path for path in disk.files() if path.startswith("index/")]


def forget_index(disk: SimDisk) -> None:
    for path in index_files(disk):
        disk.remove(path)


def forget_directories(disk: SimDisk) -> None:
    for path in list(disk._directories):
        if path.startswith("index"):
            del disk._directories[path]
            del disk._durable_directories[path]


def everything_is_there_and_fenced(promises: Promises) -> None:
    assert check(Directories.single(promises.disk)).damages == []
    promises.fenced = dict.fromkeys(LEDGERS)
    promises.open()
    promises.check()
    promises.storage.close()


@pytest.mark.parametrize("entries_in_memory_max", [20_000_000, 100])
def test_a_lost_index_is_made_anew_and_an_old_writer_is_refused(
    entries_in_memory_max: int,
) -> None:
    """An index that is lost takes with it who was fenced: so everybody is (#2774)."""
    promises = used_bookie()
    forget_index(promises.disk)
    result = rebuilt(promises.disk, entries_in_memory_max=entries_in_memory_max)
    assert (result.ledgers, result.entries, result.left_out) == (4, 600, ())
    everything_is_there_and_fenced(promises)
    promises.open()
    for ledger_id in (*LEDGERS, 5):
        status, _ = promises.storage.add(run_of(ledger_id, 1000))
        assert status is Status.FENCED, f"ledger {ledger_id}"
    status, _ = promises.storage.add(run_of(5, 1000, recovery=True))
    assert status is Status.OK


def test_a_ledger_that_was_only_fenced_here_is_made_as_the_store_tells() -> None:
    """Else the bookie would take the old writer's next entry as that of a new ledger."""
    promises = Promises(SimDisk(0))
    promises.open()
    promises.fence(5)
    promises.commit()
    promises.storage.checkpoint()
    promises.storage.close()
    promises.open()
    promises.storage.close()
    forget_index(promises.disk)
    assert rebuilt(promises.disk).ledgers == 4
    promises.open()
    status, _ = promises.storage.add(run_of(5, 0))
    assert status is Status.FENCED


def test_without_the_store_keys_come_from_the_old_index_and_the_journal() -> None:
    promises = used_bookie()
    path = "index/02/0000000000000002.index"
    promises.disk.damage(path, 3000, b"\xff" * 8)
    assert check(Directories.single(promises.disk)).damages
    result = rebuilt(promises.disk, None)
    assert (result.ledgers, result.damaged_before, result.asked_store) == (3, 1, False)
    everything_is_there_and_fenced(promises)


def test_a_ledger_without_a_key_refuses_the_whole_rebuild_and_changes_nothing() -> None:
    promises = used_bookie()
    promises.open()
    promises.storage.close()  # the journal is behind the mark: only headers have keys
    promises.disk.damage("index/02/0000000000000002.index", 100, b"\xff" * 8)
    before = promises.disk.operations
    with pytest.raises(RebuildRefused, match=r"access key of ledger 2 .* give its URI"):
        rebuilt(promises.disk, None)
    assert promises.disk.operations == before
    assert rebuilt(promises.disk).ledgers == 4
    everything_is_there_and_fenced(promises)


def test_a_ledger_that_the_store_forgot_and_nobody_has_a_key_of_is_left_out() -> None:
    promises = used_bookie()
    promises.open()
    promises.storage.close()
    forget_index(promises.disk)
    stored = StoreLedgers(dict.fromkeys((1, 259), KEY), frozenset((1,)))
    result = rebuilt(promises.disk, stored)
    assert (result.ledgers, result.left_out) == (2, (2,))


def test_a_deleted_ledger_stays_deleted() -> None:
    promises = used_bookie()
    Tombstones.load(promises.disk).add([2])
    assert rebuilt(promises.disk, None).ledgers == 2
    promises.open()
    query = ReadQuery(2, KEY, 0, 10, 1000)
    assert promises.storage.read(query).status is Status.NO_SUCH_LEDGER


def test_damaged_tombstones_are_given_up() -> None:
    promises = used_bookie()
    Tombstones.load(promises.disk).add([77])
    promises.disk.damage(TOMBSTONES, 0, b"\xff")
    assert check(Directories.single(promises.disk)).damages
    rebuilt(promises.disk)
    everything_is_there_and_fenced(promises)


def test_lost_tombstones_are_reported_and_given_up() -> None:
    promises = used_bookie()
    promises.open()
    promises.add(77, 0)
    promises.commit()
    promises.checkpoint()
    promises.storage.delete([77])
    promises.storage.close()
    promises.disk.lose(TOMBSTONES)
    with pytest.raises(IndexDamaged, match="is gone"):
        promises.open()
    [damage] = check(Directories.single(promises.disk)).damages
    assert damage.path.endswith(TOMBSTONES)
    rebuilt(promises.disk)
    everything_is_there_and_fenced(promises)


def test_an_entry_log_that_is_gone_with_the_index_leaves_the_bookie_in_limbo() -> None:
    """The new index names all that is left, and is whole: only the roll knows of more."""
    promises = used_bookie()
    lost = promises.disk.files()
    log = [path for path in lost if path.startswith("entrylog/")][-1]
    forget_index(promises.disk)
    promises.disk.lose(log)
    result = rebuilt(promises.disk)
    assert [loss for loss in result.losses if log in loss and "is gone" in loss]
    promises.open()
    newest = max(promises.stored[LEDGERS[0]])
    answer = promises.storage.read(ReadQuery(LEDGERS[0], KEY, newest + 1, newest + 1))
    assert (answer.status, answer.considered) == (Status.UNKNOWN, newest)
    promises.storage.close()
    assert rebuilt(promises.disk).losses == (), "it is in limbo already, for what is missing"


def test_an_entry_log_that_is_shorter_leaves_the_bookie_in_limbo() -> None:
    """Frames of a log without a map may end anywhere: only the roll knows that there were more."""
    promises = used_bookie()
    log = [path for path in promises.disk.files() if path.startswith("entrylog/")][-1]
    forget_index(promises.disk)
    promises.disk.cut(log, HEADER_BYTES)
    (loss,) = rebuilt(promises.disk).losses
    assert f"{log} had whole frames up to byte" in loss
    promises.open()
    assert promises.storage.limbo is not None


@pytest.mark.parametrize("what", ["lost", "older"])
def test_without_the_newest_roll_of_the_entry_logs_nobody_knows_whether_all_are_there(
    what: str,
) -> None:
    promises = used_bookie()
    older = promises.disk.content(LOGS_PATH)
    promises.open()
    promises.add(LEDGERS[0], 10_000)
    promises.commit()
    promises.checkpoint()
    promises.storage.close()
    forget_index(promises.disk)
    promises.disk.cut(LOGS_PATH, 0)
    if what == "older":
        promises.disk.damage(LOGS_PATH, 0, older)
    else:
        promises.disk.lose(LOGS_PATH)
    (loss,) = rebuilt(promises.disk).losses
    assert "nobody knows whether all entry logs are there" in loss
    promises.open()
    assert promises.storage.limbo is not None


def test_a_log_that_was_collected_is_not_missed() -> None:
    promises = used_bookie()
    promises.open()
    promises.delete(2)
    assert promises.collect() > 0
    promises.storage.close()
    forget_index(promises.disk)
    assert rebuilt(promises.disk).losses == ()


def test_a_damaged_entry_log_refuses_it() -> None:
    """What is lost there would be answered as "no such entry"; the old index tells it."""
    promises = used_bookie()
    log = next(path for path in promises.disk.files() if path.startswith("entrylog/"))
    promises.disk.damage(log, 200, b"\xff\xff")
    with pytest.raises(RebuildRefused, match="is damaged at byte"):
        rebuilt(promises.disk)


def test_a_log_that_the_old_index_names_and_that_is_gone_refuses_it() -> None:
    promises = used_bookie()
    log = next(path for path in promises.disk.files() if path.startswith("entrylog/"))
    promises.disk.remove(log)
    with pytest.raises(RebuildRefused, match="which is not whole there"):
        rebuilt(promises.disk)


def test_a_damaged_journal_refuses_it() -> None:
    promises = used_bookie()
    promises.disk.damage("journal/mark", 20, b"\xff")
    with pytest.raises(RebuildRefused, match="cannot be started anyway"):
        rebuilt(promises.disk)


def test_another_key_in_the_store_refuses_it() -> None:
    stored = StoreLedgers({**STORED.keys, 2: b"x" * 16}, STORED.here)
    with pytest.raises(RebuildRefused, match="ledger 2 has another key"):
        rebuilt(used_bookie().disk, stored)


def log_with(disk: SimDisk, log_id: int, ledger_id: int, entry_id: int, *, salt: int) -> None:
    frame = frame_of(ledger_id, entry_id, salt=salt)
    run = check_frames(ledger_id, (entry_id,), (len(frame),), frame)
    assert isinstance(run, Checked)
    log = LogFile(disk, log_id)
    log.append(whole(run))
    log.finish()
    log.sync()
    log.close()


def test_of_two_copies_the_newest_is_named_and_they_must_be_the_same() -> None:
    promises = used_bookie()
    log_with(promises.disk, 0x99, 1, 4, salt=0)
    assert rebuilt(promises.disk).entries == 600
    findings = check(Directories.single(promises.disk))
    assert findings.damages == []
    assert findings.counts.orphans == 1
    log_with(promises.disk, 0x9A, 1, 4, salt=1)
    with pytest.raises(RebuildRefused, match="entry 4 of ledger 1 is in entry log 00000099"):
        rebuilt(promises.disk)
    promises.open()
    assert entries_of(promises.storage, 1)[4] == promises.sent[1][4]


@pytest.mark.slow
@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("lost", ["nothing", "headers", "everything"])
def test_a_crash_at_any_step_leaves_an_index_that_is_old_or_new_and_it_can_be_done_again(
    lost: str, loss: Loss
) -> None:
    whole_bookie = used_bookie()
    at = 0
    finished = False
    while not finished:
        at += 1
        disk = whole_bookie.disk.copy()
        promises = copy_of(whole_bookie, disk)
        if lost == "everything":
            forget_index(disk)
            forget_directories(disk)
        elif lost == "headers":
            for path in index_files(disk):
                disk.damage(path, 50, b"\xff")
        disk.crash_at = disk.operations + at
        with suppress(PowerLost):
            rebuilt(disk)
            finished = True
        disk.crash(loss)
        if lost == "nothing":
            # Whatever is there now, nothing of it is wrong.
            probe = copy_of(whole_bookie, disk.copy())
            probe.open()
            probe.check()
        if not finished:
            rebuilt(disk)
        assert not [path for path in disk.files() if path.endswith(".rebuilt")]
        everything_is_there_and_fenced(promises)
    assert at > 10


def copy_of(promises: Promises, disk: SimDisk) -> Promises:
    other = Promises(disk)
    other.sent, other.stored = promises.sent, promises.stored
    other.fenced = dict(promises.fenced)
    return other


def test_several_directories_are_rebuilt_each_with_its_own() -> None:
    main, first, second = SimDisk(0), SimDisk(1), SimDisk(2)
    directories = Directories(main, (main,), (first, second))
    storage = BookieStorage.open(directories, SMALL)
    for ledger_id in range(6):
        status, _ = storage.add(run_of(ledger_id, *range(200)))
        assert status is Status.OK
        storage.commit()
        storage.checkpoint()
    storage.close()
    for disk in (first, second):
        forget_index(disk)
    swapped = Directories(main, (main,), (second, first))
    stored = StoreLedgers(dict.fromkeys(range(6), KEY), frozenset(range(6)))
    with pytest.raises(RebuildRefused, match="belongs to another ledger directory"):
        rebuild(swapped, stored)
    result = rebuild(directories, stored, entries_in_memory_max=300)
    assert (result.ledgers, result.entries) == (6, 1200)
    assert check(directories).damages == []
    storage = BookieStorage.open(directories, SMALL)
    for ledger_id in range(6):
        assert list(entries_of(storage, ledger_id)) == list(range(200))


async def test_directories_in_another_order_are_refused_by_their_cookies(tmp_path: Path) -> None:
    store = await open_store(f"file://{tmp_path}/store")
    try:
        main, first, second = SimDisk(0), SimDisk(1), SimDisk(2)
        right = Directories(main, (main,), (first, second))
        await identify(store, right, bookie="b", instance="i", address="h:1")
        with pytest.raises(DirectoriesChanged):
            rebuild(Directories(main, (main,), (first,)), None)
        with pytest.raises(DirectoryMisplaced):
            rebuild(Directories(main, (main,), (second, first)), None)
    finally:
        await store.close()


async def test_the_store_tells_keys_and_which_ledgers_name_the_bookie(tmp_path: Path) -> None:
    store = await open_store(f"file://{tmp_path}/store")
    try:
        namespace = await make_namespace(store)
        ledgers = LedgerStore(store, namespace.layout)
        ids: list[LedgerId] = []
        for number in range(3):
            names = (BookieId(f"b{number}"), BookieId("other"))
            ids.append(
                await ledgers.create(
                    LedgerMetadata(
                        quorum=Quorum(2, 2, 1),
                        fragments=(Fragment(EntryId(0), names),),
                        access_key=b"key %d" % number,
                        creation_token=b"%d" % number,
                    )
                )
            )
        found = await store_ledgers(store, bookie="b1", instance=namespace.instance, directory="d")
        assert found.keys == {one: b"key %d" % at for at, one in enumerate(ids)}
        assert found.here == {ids[1]}
        with pytest.raises(ForeignCluster):
            await store_ledgers(store, bookie="b1", instance="another", directory="d")

        def lose_the_session(what: str, done: int, total: int) -> None:
            store.session.lost.set()

        with pytest.raises(MetadataUnavailable, match="session changed"):
            await store_ledgers(
                store,
                bookie="b1",
                instance=namespace.instance,
                directory="d",
                progress=lose_the_session,
            )
    finally:
        await store.close()


def test_a_ledger_with_gaps_everywhere_is_rebuilt() -> None:
    promises = Promises(SimDisk(0))
    promises.open()
    entries = range(0, 127 * 2 * (EXTENTS_MAX + 20), 127 * 2)
    for entry_id in entries:
        promises.add(1, entry_id)
        promises.commit()
        promises.storage.checkpoint()
    promises.storage.close()
    forget_index(promises.disk)
    stored = StoreLedgers({1: KEY}, frozenset((1,)))
    assert rebuilt(promises.disk, stored).entries == len(entries)
    assert check(Directories.single(promises.disk)).damages == []
    promises.open()
    promises.check()
