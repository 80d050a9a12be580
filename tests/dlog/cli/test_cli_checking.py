"""``dlog log verify|audit``: what is wrong is said, and is the exit code."""

from collections.abc import Iterator

import pytest

from tests.dlog.cli.cli_shell import CliShell, cli_shell
from tests.patience import PATIENT


@pytest.fixture
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        made.write("a")
        yield made


def test_a_healthy_log_is_said_to_be_so(shell: CliShell) -> None:
    shell.write("b", end=5)
    found = shell.json_lines("log", "verify", "a", "b")
    assert [(each["log"], each["healthy"], each["records"]) for each in found] == [
        ("a", True, 30),
        ("b", True, 5),
    ]
    assert found[0]["replicas"] == 3 * found[0]["entries"]
    assert (found[0]["faults"], found[0]["problems"], found[0]["more"]) == ([], [], 0)
    text = shell.run("log", "verify", "a")
    assert "log 'a' is healthy: 3 segments" in text
    assert "there is no log" in shell.refused("log", "verify", "absent")
    shell.refused("log", "verify", code=2)


@pytest.mark.slow
def test_fragments_that_are_short_on_a_bookie_are_named_and_the_exit_code_is_1(
    shell: CliShell,
) -> None:
    shell.cluster.kill_bookie(1)
    found = shell.json("log", "verify", "a", code=1)
    assert found["healthy"] is False
    assert {fault["bookie"] for fault in found["faults"]} == {"bookie-1"}
    assert {fault["fault"] for fault in found["faults"]} == {"unreachable"}
    assert sorted(fault["segment"] for fault in found["faults"]) == [1, 2, 3]
    text = shell.run("log", "verify", "a", code=1)
    assert "log 'a' is NOT healthy" in text
    assert "bookie-1" in text
    assert "unreachable" in text
    shell.cluster.restart_bookie(1)
    assert shell.json("log", "verify", "a")["healthy"] is True


def test_a_lost_ledger_is_a_problem_of_the_log_and_missing_in_the_audit(shell: CliShell) -> None:
    segments = shell.json("log", "show", "a")["segments"]
    remove_ledger(shell, segments[1]["ledger"])
    verified = shell.json("log", "verify", "a", code=1)
    assert [problem["segment"] for problem in verified["problems"]] == [2]
    assert "its records are lost" in shell.run("log", "verify", "a", code=1)
    audited = shell.json("log", "audit", code=1)
    assert audited["healthy"] is False
    assert audited["missing"] == [
        {"log": "a", "segment": 2, "ledger": segments[1]["ledger"], "records": 10}
    ]
    assert "10 records lost" in shell.run("log", "audit", code=1)
    assert shell.json("log", "audit", "--repair", code=1)["missing"], "that cannot be repaired"


def test_an_audit_of_a_whole_namespace_finds_nothing(shell: CliShell) -> None:
    found = shell.json("log", "audit")
    assert (found["healthy"], found["logs"], found["segments"], found["ledgers"]) == (True, 1, 3, 3)
    assert (found["missing"], found["orphans"], found["troubles"]) == ([], [], [])
    assert "healthy" in shell.run("log", "audit")


def test_orphans_are_found_and_removed_only_when_told_so(shell: CliShell) -> None:
    orphan = make_orphan(shell, "a")
    found = shell.json("log", "audit", code=1)
    assert [(each["ledger"], each["log"], each["standing"]) for each in found["orphans"]] == [
        (orphan, "a", "unlisted")
    ]
    assert orphan in shell.json("ledger", "list")
    assert f"orphan: ledger {orphan} (log 'a', segment 1)" in shell.run("log", "audit", code=1)
    repaired = shell.json("log", "audit", "--repair")
    assert (repaired["healthy"], repaired["repaired"]) == (True, True)
    assert [each["ledger"] for each in repaired["orphans"]] == [orphan]
    assert orphan not in shell.json("ledger", "list")
    assert shell.json("log", "audit")["orphans"] == []


def remove_ledger(shell: CliShell, ledger: int) -> None:
    from dlog.sync.loop_thread import LoopThread
    from ledger.client import LedgerClient
    from ledger.ids import LedgerId

    async def remove() -> None:
        client = await LedgerClient.connect(shell.uri, PATIENT)
        await client.delete(LedgerId(ledger))
        await client.close()

    LoopThread.get().run(remove())


def make_orphan(shell: CliShell, log: str) -> int:
    """Make a ledger as a writer does that then lost its race for segment 1."""
    from dlog.protocol.orphans import STAMP_INCARNATION, STAMP_LOG, STAMP_SEGMENT
    from dlog.sync.loop_thread import LoopThread
    from ledger.client import LedgerClient

    incarnation = shell.json("log", "show", log)["incarnation"]

    async def make() -> int:
        client = await LedgerClient.connect(shell.uri, PATIENT)
        stamp = {
            STAMP_LOG: log.encode(),
            STAMP_INCARNATION: incarnation.encode(),
            STAMP_SEGMENT: b"1",
        }
        writer = await client.create(custom=stamp)
        await writer.close()
        await client.close()
        return int(writer.ledger_id)

    return LoopThread.get().run(make())
