"""``dlog log trace``: one record, down to the files of its bookies."""

from collections.abc import Iterator

import pytest

import dlog
from tests.dlog.cli.cli_shell import CliShell, cli_shell


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        made.write("orders")
        yield made


def test_a_record_is_traced_from_its_offset_and_from_its_dlsn(shell: CliShell) -> None:
    with dlog.Log.consumer("quick", "orders", uri=shell.uri, start=20) as consumer:
        consumer.commit(20)
    with dlog.Log.consumer("slow", "orders", uri=shell.uri, start=3) as consumer:
        consumer.commit(3)
    found = shell.json("log", "trace", "orders", "--offset", "12")
    assert (found["offset"], found["txid"], found["segment"]) == (12, 120, 2)
    assert (found["whole"], found["sealed"], found["unread"]) == (True, True, "")
    assert found["ledger_state"] == "CLOSED"
    assert sorted(found["write_set"]) == ["bookie-0", "bookie-1", "bookie-2"]
    assert found["epoch"] == 1, "the writer rolled, and nobody took over"
    assert found["owner"]
    assert [replica["fault"] for replica in found["replicas"]] == [None] * 3
    (checksum,) = {replica["crc32c"] for replica in found["replicas"]}
    assert len(checksum) == 8
    assert [(each["consumer"], each["passed"]) for each in found["consumers"]] == [
        ("quick", True),
        ("slow", False),
    ]
    assert shell.json("log", "trace", "orders", "--dlsn", found["dlsn"]) == found
    text = shell.run("log", "trace", "orders", "--offset", "12")
    assert f"offset 12, DLSN {found['dlsn']}" in text
    assert text.count(checksum) == 3
    assert "consumer quick  has passed it (at 20)" in text
    assert "did not report where: it accepts no operator requests" in text


def test_the_writer_of_each_segment_is_kept(shell: CliShell) -> None:
    shell.write("handed")
    with dlog.Log.open("handed", uri=shell.uri, owner="the second") as writer:
        writer.append(b"x")
        writer.roll()
        writer.append(b"y")
    assert shell.json("log", "trace", "handed", "--offset", "5")["epoch"] == 1
    for offset in ("30", "31"):
        found = shell.json("log", "trace", "handed", "--offset", offset)
        assert (found["epoch"], found["owner"]) == (4, "the second")


def test_a_record_that_is_not_there_is_one_sentence(shell: CliShell) -> None:
    assert "the log ends at offset 30" in shell.refused("log", "trace", "orders", "--offset", "30")
    assert "no such segment" in shell.refused("log", "trace", "orders", "--dlsn", "9:0:0")
    assert "there is no such entry" in shell.refused("log", "trace", "orders", "--dlsn", "1:99:0")
    assert "its entry has" in shell.refused("log", "trace", "orders", "--dlsn", "1:0:99")
    shell.write("trimmed")
    shell.run("log", "truncate", "trimmed", "--before", "20")
    assert "was trimmed" in shell.refused("log", "trace", "trimmed", "--offset", "3")
    assert "was trimmed" in shell.refused("log", "trace", "trimmed", "--dlsn", "1:0:0")
    shell.run("log", "create", "empty")
    assert "the log is empty" in shell.refused("log", "trace", "empty", "--offset", "0")
    assert "there is no log" in shell.refused("log", "trace", "absent", "--offset", "0")
    assert "one of --offset and --dlsn" in shell.refused("log", "trace", "orders", code=2)
    both = ("--offset", "1", "--dlsn", "1:0:0")
    assert "one of --offset and --dlsn" in shell.refused("log", "trace", "orders", *both, code=2)
    assert "is no DLSN" in shell.refused("log", "trace", "orders", "--dlsn", "x", code=2)


def test_a_bookie_that_is_away_is_the_exit_code_and_an_entry_that_nobody_gives_is_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.health.record_trace.ASK_AGAIN_S", 0.01)
    with cli_shell() as shell:
        shell.write("orders", end=5)
        shell.cluster.kill_bookie(0)
        found = shell.json("log", "trace", "orders", "--offset", "3", code=1)
        faults = {each["bookie"]: each["fault"] for each in found["replicas"]}
        assert faults == {"bookie-0": "unreachable", "bookie-1": None, "bookie-2": None}
        assert found["whole"] is False
        assert [each["crc32c"] is None for each in found["replicas"]] == [
            each["bookie"] == "bookie-0" for each in found["replicas"]
        ]
        assert "UNREACHABLE" in shell.run("log", "trace", "orders", "--offset", "3", code=1)
        shell.cluster.kill_bookie(1)
        shell.cluster.kill_bookie(2)
        for place in (("--offset", "3"), ("--dlsn", "1:0:0")):
            found = shell.json("log", "trace", "orders", *place, code=1)
            assert found["dlsn"] is None
            assert "cannot be read" in found["unread"]
            assert {each["fault"] for each in found["replicas"]} == {"unreachable"}
        assert found["offset"] is None
        assert "cannot be read" in shell.run("log", "trace", "orders", "--offset", "3", code=1)
