"""``dlog autorecovery`` and ``dlog ledger underreplicated``."""

import asyncio
from collections.abc import Iterator

import pytest

from bookie.autorecovery.checks import Audit, PlacementRecord, ReplicasRecord
from bookie.autorecovery.marks import FORMAT_VERSION, Marks
from bookie.autorecovery.worker import WORKERS
from ledger.ids import BookieId, LedgerId
from ledger.mark import MissingReplica, Reason
from ledger.metastore import open_store
from ledger.wire import metadata_pb2 as pb
from tests.dlog.cli.cli_shell import CliShell, cli_shell

LACK = MissingReplica(BookieId("bookie-9"), Reason.LOST, 1_700_000_000_000)


@pytest.fixture
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


def mark(shell: CliShell, *ledgers: int, lost: tuple[tuple[int, int], ...] = ()) -> None:
    async def marking() -> None:
        store = await open_store(shell.uri)
        marks = Marks(store)
        for number in ledgers:
            await marks.add(LedgerId(number), [LACK])
            found = await marks.read(LedgerId(number))
            assert found is not None
            if lost:
                deferred = found[0].deferred("no bookie has it", now_ms=0, lost=lost)
                assert await marks.lock(LedgerId(number))
                assert await marks.write(LedgerId(number), deferred, found[1])
                await marks.unlock(LedgerId(number))
        await store.close()

    asyncio.run(marking())


def test_where_nothing_is_lacking_status_says_so(shell: CliShell) -> None:
    found = shell.json("autorecovery", "status")
    assert found["enabled"] is True
    assert (found["underreplicated"], found["auditor"], found["last_audit"]) == (0, "", None)
    assert "none: start 'dlog autorecovery start'" in shell.run("autorecovery", "status")
    assert shell.run("ledger", "underreplicated") == "no ledger is known to be underreplicated\n"
    assert shell.json_lines("ledger", "underreplicated") == []


def test_marked_ledgers_are_counted_and_listed_with_why(shell: CliShell) -> None:
    mark(shell, 5)
    mark(shell, 12, lost=((3, 4),))
    found = shell.json("autorecovery", "status")
    assert (found["underreplicated"], found["deferred"], found["with_lost_entries"]) == (2, 1, 1)
    five, twelve = shell.json_lines("ledger", "underreplicated")
    assert (five["ledger"], five["attempts"], five["lost_entries"]) == (5, 0, [])
    assert five["lacks"] == [{"bookie": "bookie-9", "reason": "lost", "since_ms": LACK.since_ms}]
    assert (twelve["lost_entries"], twelve["why"]) == ([[3, 4]], "no bookie has it")
    table = shell.run("ledger", "underreplicated")
    assert "bookie-9 (lost)" in table
    assert "no bookie has it" in table


def test_repair_can_be_switched_off_and_on_again(shell: CliShell) -> None:
    assert shell.run("autorecovery", "disable") == "repair is paused\n"
    assert shell.json("autorecovery", "status")["enabled"] is False
    assert "no: see 'dlog autorecovery enable'" in shell.run("autorecovery", "status")
    assert shell.json("autorecovery", "enable") == {"enabled": True}
    assert shell.json("autorecovery", "status")["enabled"] is True


def test_the_delay_of_all_auditors_can_be_set_and_taken_back(shell: CliShell) -> None:
    assert shell.run("autorecovery", "delay", "60") == "auditors wait 60 s\n"
    assert shell.json("autorecovery", "status")["delay_s"] == 60.0
    shell.run("autorecovery", "delay")
    assert shell.json("autorecovery", "status")["delay_s"] is None


def test_status_shows_how_the_last_audit_ended(shell: CliShell) -> None:
    async def report() -> None:
        store = await open_store(shell.uri)
        audit = Audit(
            at_ms=1_700_000_000_000,
            ledgers=8,
            marked=3,
            damaged=1,
            lost=(BookieId("bookie-9"),),
            alarm="2 of 3 bookies are away",
        )
        await audit.write(store)
        await store.close()

    asyncio.run(report())
    last = shell.json("autorecovery", "status")["last_audit"]
    assert (last["ledgers"], last["marked"], last["damaged"]) == (8, 3, 1)
    assert last["lost"] == ["bookie-9"]
    shown = shell.run("autorecovery", "status")
    assert "2 of 3 bookies are away" in shown
    assert "2023-11-14" in shown


def test_status_shows_how_the_last_checks_ended(shell: CliShell) -> None:
    async def report() -> None:
        store = await open_store(shell.uri)
        await PlacementRecord(at_ms=1_700_000_000_000, ledgers=8, misplaced=5).write(store)
        await ReplicasRecord(at_ms=1_700_000_000_000, ledgers=8, away=4, urgent=1).write(store)
        await store.close()

    assert shell.json("autorecovery", "status")["checks"] == {
        "ledgers": None,
        "placement": None,
        "replicas": None,
    }
    asyncio.run(report())
    checks = shell.json("autorecovery", "status")["checks"]
    assert (checks["placement"]["misplaced"], checks["replicas"]["urgent"]) == (5, 1)
    shown = shell.run("autorecovery", "status")
    assert "ledgers misplaced" in shown
    assert "of them urgent" in shown


def test_an_audit_by_hand_says_what_lacks_entries(shell: CliShell) -> None:
    shell.write("orders", end=5)
    assert shell.json("autorecovery", "audit") == {
        "ledgers": 1,
        "lacking": 0,
        "unsure": 0,
        "unreadable": 0,
    }
    assert shell.run("autorecovery", "audit").startswith("1 ledger: 0 without entries")


def test_the_throttle_of_all_workers_can_be_set_option_by_option_and_taken_back(
    shell: CliShell,
) -> None:
    started = "each copies at the rate it was started with\n"
    assert shell.run("autorecovery", "throttle") == started
    assert shell.json("autorecovery", "throttle", "--rate", "8") == {
        "bytes_per_s": 8 * 1024 * 1024,
        "ledgers": None,
    }
    assert shell.run("autorecovery", "throttle", "--ledgers", "1") == (
        "each copies 8.0 MiB/s, 1 ledger at a time\n"
    )
    assert shell.run("autorecovery", "throttle", "--rate", "0") == (
        "each copies without a limit, 1 ledger at a time\n"
    )
    assert shell.json("autorecovery", "status")["throttle"] == {"bytes_per_s": 0.0, "ledgers": 1}
    assert "each copies without a limit" in shell.run("autorecovery", "status")
    assert shell.run("autorecovery", "throttle", "--reset") == started
    shell.refused("autorecovery", "throttle", "--reset", "--rate", "8", code=2)
    shell.refused("autorecovery", "throttle", "--rate", "0.01", code=2)


def test_status_shows_what_workers_do_and_how_long_it_takes(shell: CliShell) -> None:
    async def report() -> None:
        node = pb.RepairWorkerNode(
            version=FORMAT_VERSION,
            worker="host:17",
            ledgers=40,
            bytes=3 << 20,
            bytes_per_s=1 << 20,
            ledgers_per_s=0.5,
            ledgers_max=4,
        )
        store = await open_store(shell.uri)
        await store.create(f"{WORKERS}/x", node.SerializeToString())
        await store.close()

    asyncio.run(report())
    mark(shell, *range(60))
    found = shell.json("autorecovery", "status")
    assert (found["bytes_per_s"], found["left_s"]) == (1 << 20, 120.0)
    assert [each["worker"] for each in found["workers"]] == ["host:17"]
    shown = shell.run("autorecovery", "status")
    assert "1.0 MiB/s" in shown
    assert "2 min" in shown
    assert "host:17" in shown
