"""A bookie is emptied: the order of things, wherever the command is interrupted."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from bookie.autorecovery.checks import parts_of
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.move_job import _MoveIO, decommission, keep
from bookie.autorecovery.protocol.move_job import (
    Announce,
    BookieSeen,
    LookAtBookie,
    MarkAll,
    MoveEnd,
    MoveOutcome,
    PassEnded,
    Report,
    Retire,
    Survey,
    Surveyed,
    TurnReadOnly,
    UntilRetired,
    Withdraw,
    move,
)
from bookie.autorecovery.repair_io import CopyPace
from bookie.autorecovery.worker import Worker
from bookie.disk.port import Directories
from bookie.errors import BookieRetired
from bookie.identity.cookie import Cookie
from bookie.identity.stamp import identify
from ledger.cluster import make_namespace
from ledger.errors import (
    BookieForgotten,
    BookieRefused,
    DamagedMetadata,
    LogError,
    MetadataUnavailable,
)
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.manager import LAYOUTS, LedgerStore
from ledger.metadata import Fragment, LedgerMetadata
from ledger.protocol.procedure import Action, Now, Wait
from ledger.quorum import Quorum
from ledger.registry import COOKIES, BookieRegistration, Retirement, register, retirement_of
from tests.bookie.autorecovery.test_worker import AT_ONCE, closed_ledger, copies, kill, world
from tests.ledger.flaky_store import LyingStore
from tests.procedures import Raised, Returned, Script
from tests.simulation.disk import SimDisk
from tests.waiting import eventually

STEPS_MAX = 500
BOOKIE = BookieId("b")
A_PASS = MarkAll(frozenset({BOOKIE}))
LOST = MetadataUnavailable("memory", "set", 1.0)


@dataclass
class Namespace:
    """Ledgers are as many as name the bookie; each wait lets workers move one of them."""

    naming: int = 3
    unreadable: int = 0
    known: bool = True
    registered: bool = True
    read_only: bool = False
    announced: bool = False
    others: int = 3
    version: int = 7
    stuck: bool = False
    """Workers get nothing done."""
    refuses: bool = False
    """The bookie does not become read-only."""
    late: int = 0
    """Ledgers that a client puts there as long as the bookie is not read-only."""
    done: list[Action[Any]] = field(default_factory=list)

    def do(self, action: Action[Any]) -> object:
        self.done.append(action)
        match action:
            case LookAtBookie():
                return BookieSeen(
                    is_known=self.known,
                    version=self.version,
                    is_registered=self.registered,
                    is_read_only=self.read_only,
                    is_leaving=self.announced,
                    others_writable=self.others,
                )
            case Survey():
                self.meet_late_client()
                return Surveyed(widest=3 if self.naming else 0, unreadable=self.unreadable)
            case MarkAll():
                self.meet_late_client()
                return PassEnded(
                    named=self.naming,
                    named_bytes=10 * self.naming,
                    unreadable=self.unreadable,
                    marked=self.naming,
                )
            case Announce():
                self.announced = True
            case TurnReadOnly():
                if self.refuses:
                    raise BookieRefused("b", "it has no space left")
                self.read_only = True
            case Report():
                pass
            case Retire(_, version):
                assert not self.naming, "its name is retired while ledgers name it"
                assert not self.registered, "its name is retired while it runs"
                if version != self.version:
                    return False
                self.known = False
                return True
            case Withdraw():
                self.announced = False
            case _:
                raise AssertionError(f"no action of emptying: {action}")
        return None

    def meet_late_client(self) -> None:
        if self.late and not self.read_only and self.registered:
            self.late -= 1
            self.naming += 1

    def wait(self) -> None:
        if not self.stuck and self.announced:
            self.naming = max(0, self.naming - 1)


class Command:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._script = Script(move(UntilRetired(BOOKIE)))
        self._next = self._script.begin()

    @property
    def finish(self) -> MoveEnd | None:
        return self._next.value if isinstance(self._next, Returned) else None

    def step(self, *, fail: bool = False) -> None:
        assert not isinstance(self._next, Returned | Raised), "it is over"
        if isinstance(self._next, Wait):
            self._namespace.wait()
            self._next = self._script.answer(None)
            return
        if isinstance(self._next, Now):
            self._next = self._script.answer(0.0)
            return
        try:
            answer = self._namespace.do(self._next)
            if fail:
                raise LOST
        except LogError as error:
            self._next = self._script.fail(error)
        else:
            self._next = self._script.answer(answer)

    def end(self) -> MoveEnd:
        for _ in range(STEPS_MAX):
            if self.finish is not None:
                return self.finish
            self.step()
        raise AssertionError("it never ends")


def outcome(namespace: Namespace) -> MoveOutcome:
    return Command(namespace).end().outcome


def test_a_bookie_that_runs_is_emptied_and_then_waits_to_be_stopped() -> None:
    namespace = Namespace()
    assert outcome(namespace) is MoveOutcome.EMPTY
    assert (namespace.naming, namespace.known, namespace.announced) == (0, True, True)


def test_once_it_is_stopped_its_name_is_retired_last() -> None:
    namespace = Namespace()
    assert outcome(namespace) is MoveOutcome.EMPTY
    namespace.registered = False
    namespace.done.clear()
    assert outcome(namespace) is MoveOutcome.RETIRED
    assert not namespace.known
    assert namespace.done[-2:] == [Retire(BOOKIE, 7), Withdraw(BOOKIE)]
    assert namespace.done.count(A_PASS) == 2


def test_a_bookie_that_is_gone_is_emptied_from_the_others() -> None:
    namespace = Namespace(registered=False)
    assert outcome(namespace) is MoveOutcome.RETIRED
    assert TurnReadOnly(BOOKIE) not in namespace.done


def test_no_pass_counts_before_the_bookie_is_read_only() -> None:
    namespace = Namespace(naming=0, late=2)
    assert outcome(namespace) is MoveOutcome.EMPTY
    quiet = namespace.done.index(TurnReadOnly(BOOKIE))
    assert namespace.done[quiet:].count(A_PASS) >= 2
    assert namespace.naming == 0


def test_metadata_that_cannot_be_read_keep_the_name() -> None:
    command = Command(Namespace(naming=0, registered=False, unreadable=1))
    for _ in range(100):
        command.step()
    assert command.finish is None


def test_too_few_other_bookies_are_an_answer_before_anything_is_changed() -> None:
    namespace = Namespace(others=2)
    assert Command(namespace).end() == MoveEnd(
        MoveOutcome.TOO_FEW, "ledgers on it need 3 bookies, and 2 others are writable"
    )
    assert (namespace.announced, namespace.read_only) == (False, False)


def test_a_bookie_that_nobody_knows_is_an_answer() -> None:
    assert outcome(Namespace(known=False)) is MoveOutcome.UNKNOWN


def test_a_bookie_that_was_started_again_in_the_end_keeps_its_name() -> None:
    namespace = Namespace(naming=0, registered=False)
    command = Command(namespace)
    while A_PASS not in namespace.done:
        command.step()
    namespace.version += 1
    namespace.registered = namespace.read_only = True
    assert command.end().outcome is MoveOutcome.EMPTY
    assert namespace.known


def runs_again(namespace: Namespace) -> None:
    namespace.version, namespace.registered = 8, True


def ran_again(namespace: Namespace) -> None:
    namespace.version = 8


@pytest.mark.parametrize(
    ("passes", "happens", "since"),
    [(1, runs_again, TurnReadOnly), (2, ran_again, Retire), (1, None, Report)],
)
def test_only_passes_in_a_row_count_that_began_while_it_was_quiet(
    passes: int, happens: Callable[[Namespace], None] | None, since: type
) -> None:
    namespace = Namespace(naming=0, registered=False, announced=True)
    command = Command(namespace)
    while namespace.done.count(A_PASS) < passes:
        command.step()
    if happens is not None:
        happens(namespace)
    command.step(fail=happens is None)
    command.end()
    kinds = [type(action) for action in namespace.done]
    assert kinds[kinds.index(since) :].count(MarkAll) == 2


def test_a_bookie_that_does_not_become_read_only_is_an_answer() -> None:
    finish = Command(Namespace(refuses=True)).end()
    assert finish.outcome is MoveOutcome.REFUSED
    assert "it has no space left" in finish.why


def test_what_was_announced_of_a_name_that_is_retired_is_taken_back() -> None:
    namespace = Namespace(known=False, announced=True)
    assert outcome(namespace) is MoveOutcome.RETIRED
    assert not namespace.announced


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_it_may_be_interrupted_or_fail_after_any_effect(registered: bool, fail: bool) -> None:
    whole = Namespace(registered=registered)
    Command(whole).end()
    for steps in range(2 * len(whole.done)):
        namespace = Namespace(registered=registered)
        command = Command(namespace)
        for _ in range(steps):
            if command.finish is None:
                command.step()
        if command.finish is not None:
            break
        command.step(fail=fail)
        ended = command.end() if fail and command.finish is None else Command(namespace).end()
        expected = {MoveOutcome.EMPTY} if registered else {MoveOutcome.RETIRED, MoveOutcome.UNKNOWN}
        assert ended.outcome in expected, steps
        assert namespace.known is registered
        assert namespace.naming == 0


@pytest.mark.slow
async def test_a_real_bookie_is_emptied_while_it_serves_and_then_retired() -> None:
    async with world(5) as (cluster, client):
        ledgers = [await closed_ledger(client, entries=5) for _ in range(12)]
        name = BookieId(cluster.bookies[0].name)
        asked: list[LedgerId] = []

        async def read_only(_: str, bookie: BookieId) -> None:
            assert bookie == name
            await cluster.set_read_only(0)

        def reported(report: Report) -> None:
            asked.append(LedgerId(report.ledgers_left))

        async with Worker(client, AT_ONCE):
            done = await decommission(
                client, name, on_report=reported, pause_s=0.05, ask_read_only=read_only
            )
            assert done.outcome is MoveOutcome.EMPTY
            assert asked[-2:] == [0, 0]
            for ledger_id in ledgers:
                assert name not in (await client.describe(ledger_id)).fragments[0].bookies
                assert set((await copies(client, ledger_id)).values()) == {3}
            await kill(cluster, client, name)
            done = await decommission(client, name, pause_s=0.05, ask_read_only=read_only)
        assert done.outcome is MoveOutcome.RETIRED
        assert await retirement_of(client.store, name) is Retirement.EMPTIED
        assert await Marks(client.store).decommissioning() == frozenset()


@pytest.mark.parametrize(
    ("off", "why"),
    [(True, "repair is switched off"), (False, "no process of repair runs")],
)
async def test_where_nobody_makes_the_copies_it_says_so(*, off: bool, why: str) -> None:
    async with world(4) as (cluster, client):
        ledger_id = await closed_ledger(client, entries=1)
        name = (await client.describe(ledger_id)).fragments[0].bookies[0]
        index = [bookie.name for bookie in cluster.bookies].index(name)
        if off:
            await Marks(client.store).disable(now_ms=1)
        seen: list[Report] = []
        waits = asyncio.Event()

        async def read_only(_: str, __: BookieId) -> None:
            await cluster.set_read_only(index)

        def reported(report: Report) -> None:
            seen.append(report)
            waits.set()

        emptying = asyncio.ensure_future(
            decommission(client, name, on_report=reported, pause_s=0.02, ask_read_only=read_only)
        )
        await waits.wait()
        emptying.cancel()
        await asyncio.gather(emptying, return_exceptions=True)
        assert why in seen[0].trouble
        assert seen[0].ledgers_left > 0


@pytest.mark.slow
async def test_the_name_of_an_emptied_bookie_is_never_free_again() -> None:
    """Whoever slept meanwhile may still acknowledge under it: another bookie of the name would deny
    that."""
    async with world(4) as (cluster, client):
        name = BookieId(cluster.bookies[0].name)
        await kill(cluster, client, name)
        before = Cookie.decode((await client.store.get(f"{COOKIES}/{name}")).value)
        assert (await decommission(client, name, pause_s=0.02)).outcome is MoveOutcome.RETIRED
        kept = Cookie.decode((await client.store.get(f"{COOKIES}/{name}")).value)
        assert (kept.cookie, kept.address, kept.census) == (before.cookie, "", b"")
        with pytest.raises(BookieRetired, match="under another --id or none"):
            await identify(
                client.store,
                Directories.single(SimDisk(0)),
                bookie=name,
                instance=before.instance,
                address="127.0.0.1:1",
            )
        with pytest.raises(BookieForgotten):
            await register(client.store, BookieRegistration(name, "127.0.0.1:1", "start"))
        assert (await decommission(client, name, pause_s=0.02)).outcome is MoveOutcome.UNKNOWN


async def test_a_bookie_may_be_kept_after_all() -> None:
    async with world(4) as (cluster, client):
        name = BookieId(cluster.bookies[0].name)
        await Marks(client.store).announce(name)
        await keep(client, name)

        async def is_kept() -> bool:
            return not await Marks(client.store).decommissioning()

        await eventually(is_kept)


async def test_a_bookie_that_registered_since_it_was_looked_at_is_not_retired() -> None:
    """It was on its way while it was looked for, and its cookie is as it was."""
    async with world(3) as (cluster, client):
        name = BookieId(cluster.bookies[0].name)
        emptying = _MoveIO(client, CopyPace(0.0))
        cookie = f"{COOKIES}/{name}"
        version = await client.store.exists(cookie)
        assert version is not None
        assert await emptying.perform(Retire(name, version)) is False
        assert await client.store.exists(cookie) == version
        await kill(cluster, client, name)
        assert await emptying.perform(Retire(name, version)) is True
        assert await retirement_of(client.store, name) is Retirement.EMPTIED


async def test_no_bookie_is_emptied_by_what_a_damaged_store_does_not_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(3) as (cluster, client):
        name = BookieId(cluster.bookies[0].name)
        emptying = _MoveIO(client, CopyPace(0.0))
        one = frozenset({name})
        assert isinstance(await emptying.perform(MarkAll(one)), PassEnded)

        async def verify() -> None:
            raise DamagedMetadata("the store", "a test says so")

        monkeypatch.setattr(client.store, "verify", verify)
        for reads_all in (MarkAll(one), Survey(one, verified=True)):
            with pytest.raises(DamagedMetadata):
                await emptying.perform(reads_all)


async def test_a_ledger_that_the_store_hides_counts_as_one_that_cannot_be_read() -> None:
    store = LyingStore()
    await make_namespace(store)
    ledgers = LedgerStore(store, "longhierarchical")
    fragment = Fragment(EntryId(0), (BookieId("a"),))
    metadata = LedgerMetadata(
        quorum=Quorum(1, 1, 1), fragments=(fragment,), access_key=b"k" * 16, creation_token=b"t"
    )
    kept, read = await ledgers.create(metadata), await ledgers.create(metadata)
    layout = LAYOUTS["longhierarchical"]
    store.unread.add(layout.path(kept))
    assert [each async for part in parts_of(ledgers) for each in part] == [
        (kept, None),
        (read, metadata),
    ]
    await store.close()
