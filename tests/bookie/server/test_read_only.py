"""A bookie is read-only as long as there is a reason, and says which."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bookie.disk.port import Directories, DiskFile
from bookie.disk.watch import DiskLimits
from bookie.errors import OrderNotKept, StorageFailed
from bookie.server.read_only import PATH, ReadOnlyKeeper
from bookie.storage.engine import BookieStorage
from ledger.requests import ReadQuery, Status
from tests.bookie.promises import SMALL
from tests.bookie.runs import KEY, run_of
from tests.simulation.disk import Loss, SimDisk
from tests.waiting import PATIENCE_S, until

LIMITS = DiskLimits(reserve_bytes=0)
OPERATOR = "an operator said so"


class Refuser:
    """What the keeper sees of a storage."""

    def __init__(self) -> None:
        self.troubles: tuple[str, ...] = ()
        self.told = self.told_recovery = False

    @property
    def read_only(self) -> bool:
        return self.told or bool(self.troubles)

    def set_read_only(self, *, read_only: bool, recovery_too: bool = False) -> None:
        self.told, self.told_recovery = read_only, recovery_too


class Kept:
    """A keeper over a main directory and one for ledgers."""

    def __init__(self, main: SimDisk | None = None, limits: DiskLimits = LIMITS) -> None:
        self.main, self.ledgers = main or SimDisk(0), SimDisk(1)
        self.storage = Refuser()
        self.changes: list[bool] = []
        self.spaces = 0
        self.keeper = ReadOnlyKeeper(
            self.storage,
            Directories(self.main, (self.main,), (self.ledgers,)),
            limits,
            interval_s=0.01,
            on_space=self._space,
            on_change=self.changes.append,
        )

    def fill(self, used_bytes: int) -> None:
        """Make the ledger directory *used_bytes* of 1000 full."""
        self.ledgers.capacity_bytes = None
        self.ledgers.create("f").write([bytes(used_bytes)], 0)
        self.ledgers.capacity_bytes = 1000

    def _space(self) -> None:
        self.spaces += 1


@asynccontextmanager
async def running(kept: Kept) -> AsyncIterator[Kept]:
    task = asyncio.ensure_future(kept.keeper.run())
    try:
        yield kept
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()


async def test_a_disk_that_fills_up_makes_it_read_only_until_there_is_space() -> None:
    async with running(Kept()) as kept:
        await until(lambda: len(kept.keeper.measured) == 2)
        assert kept.changes == []
        kept.fill(950)
        await until(lambda: kept.changes == [True])
        (reason,) = kept.keeper.reasons
        assert reason == "simulated disk: is 95.0% full, 0 MiB are free"
        kept.fill(920)
        await until(lambda: "92.0%" in kept.keeper.reasons[0])
        assert kept.spaces == 0
        kept.fill(800)
        await until(lambda: kept.changes == [True, False])
        assert kept.keeper.reasons == ()
        assert kept.spaces == 1


def test_recovery_adds_end_with_half_of_the_reserve() -> None:
    kept = Kept(limits=DiskLimits(reserve_bytes=100))
    for used_bytes, read_only, recovery_too in (
        (899, False, False),
        (901, True, False),
        (950, True, False),
        (951, True, True),
        (945, True, False),
        (750, False, False),
    ):
        kept.fill(used_bytes)
        kept.keeper.look()
        assert (kept.storage.told, kept.storage.told_recovery) == (read_only, recovery_too)


async def test_it_is_known_before_anything_is_served() -> None:
    kept = Kept()
    kept.fill(960)
    assert kept.keeper.look()
    assert kept.storage.told
    assert kept.changes == [True]
    assert not Kept().keeper.look()


async def test_a_disk_that_is_nearly_full_is_a_warning_only() -> None:
    kept = Kept()
    kept.fill(910)
    assert not kept.keeper.look()
    assert list(kept.keeper.warnings) == ["simulated disk: is 91.0% full, 0 MiB are free"]


async def test_a_disk_that_cannot_be_asked_is_a_reason() -> None:
    class Silent(SimDisk):
        def usage(self) -> None:  # type: ignore[override]
            raise OSError(errno.EIO, "Input/output error")

    kept = Kept(Silent(0))
    assert kept.keeper.look()
    assert "cannot be asked" in kept.keeper.reasons[0]
    assert kept.keeper.measured[0].usage is None


async def test_an_order_whose_operator_does_not_wait_for_the_answer_is_carried_out() -> None:
    """Else it is kept for the next start and not obeyed until then."""
    keeping, may_keep = threading.Event(), threading.Event()

    class Slow(SimDisk):
        def create(self, path: str) -> DiskFile:
            keeping.set()
            assert may_keep.wait(PATIENCE_S)
            return super().create(path)

    kept = Kept(Slow(0))
    order = asyncio.ensure_future(kept.keeper.set_by_operator(read_only=True))
    await until(keeping.is_set)
    order.cancel()
    await asyncio.wait([order])
    may_keep.set()
    await until(lambda: kept.storage.read_only)
    assert list(kept.keeper.reasons) == [OPERATOR]


async def test_an_order_that_cannot_be_looked_for_is_no_order_that_is_not_there() -> None:
    class Broken(SimDisk):
        def list(self, directory: str) -> list[str]:
            raise OSError(errno.EIO, f"Input/output error in {directory}")

    with pytest.raises(StorageFailed, match="Input/output error"):
        Kept(Broken(0)).keeper.look()


async def test_what_the_storage_refuses_for_is_told_and_is_not_its_doing() -> None:
    async with running(Kept()) as kept:
        kept.storage.troubles = ("no room for its journal",)
        await until(lambda: kept.changes == [True])
        assert list(kept.keeper.reasons) == ["no room for its journal"]
        assert not kept.storage.told
        kept.storage.troubles = ()
        await until(lambda: kept.changes == [True, False])


async def test_an_order_of_an_operator_survives_a_restart_and_a_crash() -> None:
    kept = Kept()
    await kept.keeper.set_by_operator(read_only=True)
    assert kept.changes == [True]
    assert list(kept.keeper.reasons) == [OPERATOR]
    kept.main.crash(Loss.LOST)
    again = Kept(kept.main)
    assert again.keeper.look()
    assert list(again.keeper.reasons) == [OPERATOR]
    await again.keeper.set_by_operator(read_only=False)
    assert again.changes == [True, False]
    kept.main.crash(Loss.LOST)
    assert not Kept(kept.main).keeper.look()
    await again.keeper.set_by_operator(read_only=False)


async def test_taking_the_order_back_leaves_the_other_reasons() -> None:
    kept = Kept()
    kept.fill(960)
    kept.keeper.look()
    await kept.keeper.set_by_operator(read_only=True)
    await kept.keeper.set_by_operator(read_only=False)
    assert kept.changes == [True]
    assert len(kept.keeper.reasons) == 1
    assert kept.storage.told


@pytest.mark.parametrize("operation", ["create", "sync_directory"])
async def test_an_order_that_cannot_be_kept_is_told_and_changes_nothing(operation: str) -> None:
    kept = Kept()
    kept.main.fail(operation, "", errno.EIO)
    with pytest.raises(OrderNotKept, match=f"cannot be stored in .*{PATH}"):
        await kept.keeper.set_by_operator(read_only=True)
    assert kept.keeper.reasons == ()
    assert not kept.storage.read_only


def test_a_storage_refuses_what_it_is_told_and_never_fences_or_reads() -> None:
    storage = BookieStorage.open(SimDisk(0), SMALL)
    assert storage.add(run_of(0))[0] is Status.OK
    for read_only, recovery_too in ((True, False), (True, True), (False, False)):
        storage.set_read_only(read_only=read_only, recovery_too=recovery_too)
        assert storage.read_only is read_only
        normal, _ = storage.add(run_of(1, ledger_id=8))
        recovery, _ = storage.add(run_of(1, ledger_id=9, recovery=True))
        assert normal is (Status.READ_ONLY if read_only else Status.OK)
        assert recovery is (Status.READ_ONLY if recovery_too else Status.OK)
        status, ticket = storage.fence(10, KEY)
        assert status is Status.OK
        assert storage.commit() >= ticket
        assert list(storage.read(ReadQuery(7, KEY, 0, 0)).entries) == [0]
    storage.close()
