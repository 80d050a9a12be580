"""``dlog perf standby``: leaders that are ended under load, and what is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.measuring import takeovers
from dlog.measuring.leader import Checked, numbered
from dlog.position import Place, Record
from tests.clusters import running
from tests.dlog.cli.cli_shell import CliShell, cli_shell
from tests.waiting import TEST_S, alive, wait_until


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliShell]:
    """A cluster that other processes reach."""
    with cli_shell() as made, running(tmp_path_factory.mktemp("cluster")) as cluster:
        made.uri = cluster.uri
        yield made


def record(offset: int, number: int) -> Record:
    return Record(offset, Place(1, 0, 0), 0, None, None, numbered(number, 20))


@pytest.mark.integration
@pytest.mark.parametrize("how", ["kill", "resign"])
def test_rounds_are_timed_with_their_parts_and_leave_nothing_behind(
    processes: CliShell, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(takeovers, "LOAD_S", 0.1)
    found = processes.json("perf", "standby", "--rounds", "2", "--how", how, "--size", "1K")
    assert (found["how"], found["rounds"]) == (how, 2)
    assert (found["lost"], found["doubled"]) == (0, 0)
    assert found["records"] > 2 * 100
    assert 0 < found["p50_ms"] <= found["max_ms"]
    parts = {name: ms for name, ms in found.items() if name.endswith("_p50_ms")}
    assert next(iter(parts)) == "until_elected_p50_ms"
    assert list(parts)[-1] == "first_append_p50_ms"
    assert all(0 <= ms <= found["max_ms"] for ms in parts.values()), parts
    assert {"read_manifest_p50_ms", "write_manifest_p50_ms", "apply_rest_p50_ms"} <= set(parts)
    assert processes.run("log", "list") == ""


@pytest.mark.integration
def test_a_leader_that_ends_by_itself_is_one_sentence_and_its_log_is_deleted(
    shell: CliShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    told = shell.refused("perf", "standby", "--log", "measured")
    assert "round 1 could not be measured: the leader's process ended by itself" in told
    assert "dlog status" in told
    assert shell.run("log", "list") == ""


def test_a_log_that_is_there_is_not_touched(shell: CliShell) -> None:
    shell.write("orders", 0, 3)
    assert "orders" in shell.refused("perf", "standby", "--log", "orders")
    assert shell.json_lines("log", "tail", "orders")[-1]["offset"] == 2
    shell.run("log", "delete", "orders", "--yes")


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_it_ends_its_leader(processes: CliShell, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "dlog.cli", "perf", "standby", "--log", f"ended-by-{number}"]
    environment = os.environ | {"DLOG_URI": processes.uri}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE) as command:
        try:
            wait_until(lambda: len(children(command.pid)) == 1, "its leader runs")
            [leader] = children(command.pid)
            command.send_signal(number)
            _, said = command.communicate(timeout=TEST_S)
            wait_until(lambda: not alive(leader), "its leader has ended, too")
        finally:
            command.kill()
    if number is not signal.SIGKILL:
        assert command.returncode == 130, said
        assert said == b""
        assert f"ended-by-{number}" not in processes.run("log", "list")


def test_a_record_that_is_lost_or_doubled_is_counted() -> None:
    checked = Checked()
    checked.take(record(offset, offset) for offset in range(5))
    assert (checked.records, checked.lost, checked.doubled) == (5, 0, 0)
    checked.take([record(5, 7)])
    assert (checked.lost, checked.doubled) == (2, 0)
    checked.take([record(6, 7), record(7, 6)])
    assert (checked.lost, checked.doubled) == (2, 2)
    checked.expect(8)
    assert checked.lost == 2
    checked.expect(11)
    assert (checked.end, checked.lost) == (11, 5)


@pytest.mark.parametrize("found", [{"lost": 1}, {"doubled": 1}])
def test_a_lost_or_doubled_record_is_exit_code_1(
    shell: CliShell, monkeypatch: pytest.MonkeyPatch, found: dict[str, int]
) -> None:
    async def measure(*_: object, **__: object) -> takeovers.Measured:
        taken = takeovers.TimedTakeover(0.1, {"until_elected": 0.05})
        return takeovers.Measured([taken], records=9, **found)

    monkeypatch.setattr(takeovers, "measure", measure)
    [(name, count)] = found.items()
    assert shell.json("perf", "standby", code=1)[name] == count


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]
