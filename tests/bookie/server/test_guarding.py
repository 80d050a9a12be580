"""A bookie lets in what was granted, and nothing else, on real connections with certificates."""

import asyncio
import logging
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.server.metadata_lookups import SILENCE_S
from ledger.feature_level import OWNERS, ClusterLevel
from ledger.ids import LedgerId
from ledger.ledger_owner import RENAMED_PATH, owner_path, renamed_path, renamed_value
from ledger.repair_marks import path_of_lock
from ledger.requests import AddRun, ReadQuery, Status
from ledger.security.access import ACCESS, Role
from ledger.transport.sockets import SocketTransport
from tests.bookie.runs import KEY, run_of
from tests.bookie.server.guarded import BOOKIE, Guarded, guarded
from tests.bookie.server.operations import (
    COPIES,
    OPERATIONS,
    READS,
    REPAIRS,
    WRITES,
    do,
    entry,
    explicit_lac,
    stamp,
)
from tests.ledger.serving import add
from tests.waiting import ended, eventually, until

LOG = "team/flights"

CASES = [
    # who, by what grants, may do what with a ledger of LOG, and with one of no log
    ("nobody", [], set(), set()),
    ("reader", [(Role.READER, LOG)], READS, set()),
    ("reader of a prefix", [(Role.READER, "team/*")], READS, set()),
    ("reader of all", [(Role.READER, "*")], READS, READS),
    ("reader of others", [(Role.READER, "team/flight"), (Role.READER, "teams/*")], set(), set()),
    ("writer", [(Role.WRITER, LOG)], WRITES, set()),
    ("writer of a prefix", [(Role.WRITER, "team/*")], WRITES, set()),
    ("writer of all", [(Role.WRITER, "*")], WRITES, WRITES),
    ("writer of others", [(Role.WRITER, "flights*")], set(), set()),
    ("writer there reader here", [(Role.WRITER, "x"), (Role.READER, "team/*")], READS, set()),
    ("repair", [(Role.BOOKIE, "*")], REPAIRS, REPAIRS),
    ("operator", [(Role.OPERATOR, "*")], REPAIRS, REPAIRS),
    ("operator and writer", [(Role.OPERATOR, "*"), (Role.WRITER, LOG)], WRITES | REPAIRS, REPAIRS),
]


async def test_each_operation_is_open_to_the_roles_that_it_is_for_and_to_no_other(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as bookie:
        for who, grants, _, _ in CASES:
            for role, logs in grants:
                await bookie.grant(f"cn:{who}", role, logs)
        for who, _, of_log, of_none in CASES:
            await assert_may(bookie, bookie.as_(who), who, LOG, of_log)
            await assert_may(bookie, bookie.as_(who), who, None, of_none)
        by_certificate = bookie.as_("b2", bookie="b2")
        await assert_may(bookie, by_certificate, "b2", LOG, REPAIRS)


async def assert_may(
    bookie: Guarded, transport: SocketTransport, who: str, log: str | None, allowed: Set[str]
) -> None:
    for operation in OPERATIONS:
        ledger_id = await bookie.made(log)
        if operation == COPIES:
            await bookie.close(ledger_id, 1)
            await bookie.repair(ledger_id, f"cn:{who}", f"uri:dlog:bookie:{who}")
        before = dict(bookie.storage.ledgers[ledger_id])
        status = await do(operation, transport, BOOKIE, ledger_id)
        expected = Status.OK if operation in allowed else Status.ACCESS_DENIED
        assert status is expected, f"{who}: {operation} of {log}"
        if operation not in allowed:
            assert bookie.storage.ledgers[ledger_id] == before, "nothing was done"
            assert ledger_id not in bookie.storage.fenced
    assert await transport.info(BOOKIE) is not None, "that is for everybody"


def copy(*entries: int, ledger_id: int) -> AddRun:
    return run_of(*entries, ledger_id=ledger_id, recovery=True)


async def test_the_certificate_of_a_bookie_copies_what_is_settled_and_adds_nothing(
    tmp_path: Path,
) -> None:
    """As attackers with the certificate of one bookie did: by a flag, behind the end of a log."""
    async with guarded(tmp_path) as bookie:
        evil, who = bookie.as_("b2", bookie="b2"), "uri:dlog:bookie:b2"
        ledger_id = await bookie.made(LOG)

        async def refused(run: AddRun) -> None:
            before = dict(bookie.storage.ledgers[ledger_id]), dict(bookie.storage.proofs)
            assert await add(evil, run) is Status.ACCESS_DENIED
            after = dict(bookie.storage.ledgers[ledger_id]), dict(bookie.storage.proofs)
            assert after == before, "nothing is taken"

        await bookie.repair(ledger_id, who)
        await refused(copy(1, ledger_id=ledger_id))  # behind the end of an open ledger
        await refused(explicit_lac(ledger_id, 10**9, recovery=True))
        await refused(explicit_lac(ledger_id, 10**9))
        await bookie.close(ledger_id, 3)
        await refused(copy(4, ledger_id=ledger_id))
        await refused(copy(3, 4, ledger_id=ledger_id))
        await refused(explicit_lac(ledger_id, 3, recovery=True))
        assert await add(evil, copy(1, ledger_id=ledger_id)) is Status.OK
        await bookie.repair(ledger_id, "uri:dlog:bookie:b3", "cn:b2")
        await refused(copy(2, ledger_id=ledger_id))  # somebody else repairs it
        await bookie.repair(ledger_id, who, targets=("b3",))
        await refused(copy(2, ledger_id=ledger_id))  # and copies elsewhere
        await bookie.store.delete(path_of_lock(ledger_id))
        await refused(copy(2, ledger_id=ledger_id))  # nobody repairs it
        await bookie.repair(ledger_id, who)
        bookie.store.silent = True
        assert await add(evil, copy(2, ledger_id=ledger_id)) is Status.TOO_MANY_REQUESTS


async def test_before_anything_is_granted_only_a_bookie_is_let_in(tmp_path: Path) -> None:
    async with guarded(tmp_path, watching=False) as bookie:
        ledger_id = await bookie.made(LOG)
        for operation in OPERATIONS:
            status = await do(operation, bookie.as_("operator"), BOOKIE, ledger_id)
            assert status is Status.ACCESS_DENIED, operation
        assert await do("held", bookie.as_("b2", bookie="b2"), BOOKIE, ledger_id) is Status.OK


async def test_a_right_that_is_revoked_ends_on_connections_that_are_open(tmp_path: Path) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.WRITER, LOG)
        app, ledger_id = bookie.as_("app"), await bookie.made(LOG)
        assert [await add(app, entry(ledger_id, n)) for n in range(1, 4)] == [Status.OK] * 3
        assert await do("read", app, BOOKIE, ledger_id) is Status.OK
        open_before = set(bookie.server.connections)
        await bookie.revoke("cn:app", Role.WRITER, LOG)
        assert await add(app, entry(ledger_id, 4)) is Status.ACCESS_DENIED
        for operation in OPERATIONS:
            assert await do(operation, app, BOOKIE, ledger_id) is Status.ACCESS_DENIED, operation
        assert sorted(bookie.storage.ledgers[ledger_id]) == [0, 1, 2, 3]
        await bookie.grant("cn:app", Role.READER, LOG)
        assert await do("read", app, BOOKIE, ledger_id) is Status.OK
        assert await add(app, entry(ledger_id, 4)) is Status.ACCESS_DENIED
        assert set(bookie.server.connections) == open_before, "they were the same all the time"


async def test_a_reader_that_waits_gets_nothing_that_came_after_its_right_was_revoked(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.WRITER, LOG)
        await bookie.grant("cn:tail", Role.READER, LOG)
        app, tail, ledger_id = bookie.as_("app"), bookie.as_("tail"), await bookie.made(LOG)
        query = ReadQuery(ledger_id, KEY, 0, 9, wait_ms=60_000)
        waiting = asyncio.ensure_future(tail.read(BOOKIE, query))
        await until(lambda: bookie.service.core.waiting_reads == 1)
        await bookie.revoke("cn:tail", Role.READER, LOG)
        assert await add(app, entry(ledger_id, 1)) is Status.OK
        answer = await ended(waiting)
        assert (answer.status, bytes(answer.frames)) == (Status.ACCESS_DENIED, b"")


async def test_of_one_batch_what_is_allowed_is_taken_and_the_rest_is_not(tmp_path: Path) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.WRITER, LOG)
        app = bookie.as_("app")
        ours = [await bookie.made(LOG, stored=False) for _ in range(2)]
        other = await bookie.made("other", stored=False)
        unmade = LedgerId(2**40)
        answers = await asyncio.gather(
            *(add(app, run_of(0, ledger_id=one)) for one in (ours[0], other, unmade, ours[1]))
        )
        assert answers == [
            Status.OK,
            Status.ACCESS_DENIED,
            Status.NO_SUCH_LEDGER,
            Status.OK,
        ]
        assert sorted(bookie.storage.ledgers) == sorted(ours)


async def test_what_nobody_made_is_no_ones_to_fence_and_its_absence_no_promise(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.WRITER, LOG)
        app, unmade = bookie.as_("app"), LedgerId(2**40)
        assert await do("read", app, BOOKIE, unmade) is Status.NO_SUCH_LEDGER
        assert await do("fence", app, BOOKIE, unmade) is Status.TOO_MANY_REQUESTS
        assert await do("fencing read", app, BOOKIE, unmade) is Status.TOO_MANY_REQUESTS
        assert unmade not in bookie.storage.fenced


async def test_while_the_store_is_away_the_last_rules_hold_for_what_is_known(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.WRITER, LOG)
        await bookie.grant("cn:all", Role.WRITER, "*")
        known, met_later = await bookie.made(LOG), await bookie.made(LOG)
        assert await add(bookie.as_("app"), entry(known, 1)) is Status.OK
        bookie.store.silent = True
        assert await add(bookie.as_("app"), entry(known, 2)) is Status.OK
        assert await do("read", bookie.as_("stranger"), BOOKIE, known) is Status.ACCESS_DENIED
        for operation in ("add", "read", "fence"):
            status = await do(operation, bookie.as_("app"), BOOKIE, met_later)
            assert status is Status.TOO_MANY_REQUESTS, f"{operation}: whose is it?"
        unsure = await add(bookie.as_("all"), entry(met_later, 1))
        assert unsure is Status.TOO_MANY_REQUESTS, "it may be a log of dlog's own"
        read = await do("read", bookie.as_("all"), BOOKIE, met_later)
        assert read not in {Status.TOO_MANY_REQUESTS, Status.ACCESS_DENIED}
        bookie.store.silent = False
        await bookie.revoke("cn:app", Role.WRITER, LOG)
        assert await add(bookie.as_("app"), entry(known, 3)) is Status.ACCESS_DENIED


async def test_a_store_that_is_silent_is_not_asked_about_each_ledger(tmp_path: Path) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.READER, LOG)
        bookie.store.silent = True
        for ledger_id in range(3):
            assert await do("read", bookie.as_("app"), BOOKIE, LedgerId(ledger_id)) is (
                Status.TOO_MANY_REQUESTS
            )
        bookie.store.silent = False
        later = await bookie.made(LOG)
        assert await do("read", bookie.as_("app"), BOOKIE, later) is Status.TOO_MANY_REQUESTS
        bookie.now += SILENCE_S
        assert await do("read", bookie.as_("app"), BOOKIE, later) is Status.OK


async def test_rules_that_cannot_be_read_leave_the_last_ones_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.READER, LOG)
        ledger_id = await bookie.made(LOG)
        await bookie.store.set(ACCESS, b"\xff")
        await until(lambda: "access_rules_not_read" in caplog.text)
        assert await do("read", bookie.as_("app"), BOOKIE, ledger_id) is Status.OK
        await bookie.store.delete(ACCESS)
        await until(lambda: bookie.guard.grants == 0)
        assert await do("read", bookie.as_("app"), BOOKIE, ledger_id) is Status.ACCESS_DENIED


async def test_rights_follow_a_log_that_is_renamed(tmp_path: Path) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:old", Role.READER, LOG)
        await bookie.grant("cn:new", Role.READER, "hidden/*")
        ledger_id = await bookie.made(LOG)
        assert await do("read", bookie.as_("old"), BOOKIE, ledger_id) is Status.OK
        assert await do("read", bookie.as_("new"), BOOKIE, ledger_id) is Status.ACCESS_DENIED
        await bookie.store.create(renamed_path("i1"), renamed_value("hidden/it", now_ms=1))
        await bookie.store.set(RENAMED_PATH, b"")

        async def is_closed() -> bool:
            return await do("read", bookie.as_("old"), BOOKIE, ledger_id) is Status.ACCESS_DENIED

        await eventually(is_closed)
        assert await do("read", bookie.as_("new"), BOOKIE, ledger_id) is Status.OK


async def relabelled(bookie: Guarded, ledger_id: LedgerId, log: str) -> None:
    """Do what a client of the metadata store can: say that a ledger is of another log."""
    metadata, version = await bookie.ledgers.read(ledger_id)
    await bookie.ledgers.write(ledger_id, replace(metadata, custom=stamp(log)), version)


async def test_who_relabels_a_ledger_gets_no_right_to_it(tmp_path: Path) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:thief", Role.WRITER, "thiefs")
        await bookie.grant("cn:owner", Role.WRITER, LOG)
        for log in (LOG, None):
            for operation in OPERATIONS:
                ledger_id = await bookie.made(log)
                if operation == COPIES:
                    await bookie.close(ledger_id, 1)
                    await bookie.repair(ledger_id, "cn:thief")
                await relabelled(bookie, ledger_id, "thiefs")
                status = await do(operation, bookie.as_("thief"), BOOKIE, ledger_id)
                assert status is Status.ACCESS_DENIED, operation
        ledger_id = await bookie.made(LOG)
        await relabelled(bookie, ledger_id, "thiefs")
        assert await do("add", bookie.as_("owner"), BOOKIE, ledger_id) is Status.OK


async def test_from_a_level_on_a_ledger_without_owner_node_is_of_no_log(tmp_path: Path) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.READER, LOG)
        await bookie.grant("cn:all", Role.READER, "*")
        await bookie.held(ClusterLevel(OWNERS - 1))
        without = [await bookie.made(LOG) for _ in range(2)]
        for ledger_id in without:
            await bookie.store.delete(owner_path(ledger_id))
        assert await do("read", bookie.as_("app"), BOOKIE, without[0]) is Status.OK
        await bookie.held(ClusterLevel(OWNERS))

        async def refused() -> bool:
            return await do("read", bookie.as_("app"), BOOKIE, without[0]) is Status.ACCESS_DENIED

        await eventually(refused)
        assert await do("read", bookie.as_("app"), BOOKIE, without[1]) is Status.ACCESS_DENIED
        assert await do("read", bookie.as_("all"), BOOKIE, without[1]) is Status.OK


async def test_an_owner_node_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.READER, LOG)
        ledger_id = await bookie.made(LOG)
        await bookie.store.set(owner_path(ledger_id), b"\xff")
        status = await do("read", bookie.as_("app"), BOOKIE, ledger_id)
        assert status is Status.TOO_MANY_REQUESTS


async def test_refusals_are_counted_and_told_of_at_a_bounded_rate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.READER, LOG)
        ledger_id = await bookie.made("other")
        for _ in range(5):
            assert await do("read", bookie.as_("app"), BOOKIE, ledger_id) is Status.ACCESS_DENIED
            assert await do("fence", bookie.as_("app"), BOOKIE, ledger_id) is Status.ACCESS_DENIED
    assert {action.name: count for action, count in bookie.guard.denied.items()} == {
        "READ": 5,
        "RECOVER": 5,
    }
    (line,) = [each for each in caplog.messages if each.startswith("access_denied")]
    assert "identity='cn:app'" in line
    assert "action='read' role='reader'" in line
    assert f"ledger_id={ledger_id} log='other'" in line
    assert "peer=" in line


async def test_changes_of_the_rules_are_in_the_log_with_who_made_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as bookie:
        await bookie.grant("cn:app", Role.READER, LOG)
        await bookie.revoke("cn:app", Role.READER, LOG)
    changes = [each for each in caplog.messages if each.startswith("access_changed")]
    assert "by='the test'" in changes[0]
    assert f"granted=['cn:app is reader of {LOG}'] revoked=[]" in changes[0]
    assert f"granted=[] revoked=['cn:app is reader of {LOG}']" in changes[1]


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
