"""``dlog replica``: running replicas and their snapshots, at the shell."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from dlog import Command, Replica, SnapshotPolicy, StateMachine
from dlog.admin import truncate_log
from dlog.aio import replica_registry
from dlog.protocol.snapshot import SnapshotHeader, write_snapshot
from tests.dlog.aio.test_replica_snapshots import HEADER
from tests.dlog.cli.cli_shell import CliShell, cli_shell
from tests.waiting import PATIENCE_S, wait_until

LOG = "accounts"
NEVER = SnapshotPolicy(every_records=10**9)


class Count(StateMachine):
    def __init__(self) -> None:
        self.count = 0

    def apply(self, command: Command) -> object:
        if command.payload == b"fail":
            raise ValueError("cannot apply that")
        self.count += 1
        return self.count

    def snapshot(self, out: BinaryIO) -> None:
        out.write(b"%d" % self.count)

    def restore(self, source: BinaryIO) -> None:
        self.count = int(source.read())


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[CliShell]:
    monkeypatch.setattr(replica_registry, "STATUS_S", 0.0)
    monkeypatch.setattr(replica_registry, "POLL_S", 0.02)
    with cli_shell() as made:
        yield made


@contextmanager
def opened(shell: CliShell, name: str = "a", **how: Any) -> Iterator[Replica[Count]]:
    with Replica.open(
        LOG,
        Count(),
        uri=shell.uri,
        candidate=name,
        address=f"http://{name}",
        policy=NEVER,
        lease_s=PATIENCE_S,
        **how,
    ) as replica:
        yield replica


@contextmanager
def leading(shell: CliShell, **how: Any) -> Iterator[Replica[Count]]:
    with opened(shell, **how) as replica:
        assert replica.wait_role("leader", timeout_s=PATIENCE_S)
        yield replica


def write_to(directory: Path, header: SnapshotHeader) -> None:
    with (directory / f"{header.offset:020d}.snapshot").open("wb") as out:
        write_snapshot(out, header, [b"\0\0\0\0"], lambda state: state.write(b"1"))


def files(snapshots: Path) -> list[Path]:
    return sorted(snapshots.glob("*/*.snapshot"))


def test_running_replicas_are_listed(shell: CliShell) -> None:
    assert shell.invoke("replica", "list").stderr == "no replica is running\n"
    assert shell.json("replica", "list") == []
    assert "no log" in shell.refused("replica", "list", LOG)
    with leading(shell) as leader, opened(shell, "b"):
        leader.submit(b"x")

        def both_applied() -> bool:
            return [each["lag"] for each in shell.json("replica", "list", LOG)] == [0, 0]

        wait_until(both_applied, "both have applied the command")
        a, b = shell.json("replica", "list")
        assert (a["replica"], a["role"], a["address"], a["epoch"]) == (
            "a",
            "leader",
            "http://a",
            leader.epoch,
        )
        assert (b["role"], b["epoch"], b["applied"], b["version"]) == (
            "standby",
            None,
            leader.applied,
            1,
        )
        lines = shell.run("replica", "list", LOG).splitlines()
        assert lines[1].split()[:4] == [LOG, "a", "leader", "http://a"]
    assert shell.json("replica", "list", LOG) == []


def test_a_replica_that_stopped_is_listed_with_its_error(shell: CliShell) -> None:
    with leading(shell) as leader:
        with pytest.raises(Exception, match="cannot apply that"):
            leader.submit(b"fail")
        wait_until(lambda: shell.json("replica", "list")[0]["role"] == "stopped", "it stopped")
        assert "cannot apply that" in shell.run("replica", "list", LOG)
        assert "no replica of log 'accounts' is running" in shell.refused(
            "replica", "snapshot", LOG
        )


def test_a_snapshot_is_written_by_a_running_replica(shell: CliShell, tmp_path: Path) -> None:
    with leading(shell, snapshots=str(tmp_path)) as leader, opened(shell, "b"):
        leader.submit(b"x")
        done = shell.json("replica", "snapshot", LOG)
        assert done == {"log": LOG, "replica": "a", "offset": leader.applied}
        assert [int(path.stem) for path in files(tmp_path)] == [leader.applied]
        assert shell.run("replica", "snapshot", LOG, "--replica", "a") == f"{leader.applied}\n"
        refused = shell.refused("replica", "snapshot", LOG, "--replica", "b")
        assert "without a store" in refused
        refused = shell.refused("replica", "snapshot", LOG, "--replica", "aa")
        assert "running: a, b" in refused


def test_without_a_running_replica_no_snapshot_is_written(shell: CliShell) -> None:
    with leading(shell):
        assert "has a store of snapshots" in shell.refused("replica", "snapshot", LOG)
    assert "no replica of log 'accounts' is running" in shell.refused("replica", "snapshot", LOG)


def test_snapshots_of_a_log_are_shown(shell: CliShell, tmp_path: Path) -> None:
    with leading(shell, snapshots=str(tmp_path)) as leader:
        leader.submit(b"x")
        offset = leader.snapshot()
        shown = shell.json("replica", "show", LOG)
        assert [each["replica"] for each in shown["replicas"]] == ["a"]
        [store] = shown["stores"]
        assert store["uri"] == tmp_path.as_uri()
        [snapshot] = store["snapshots"]
        assert (snapshot["offset"], snapshot["state"], snapshot["epoch"], snapshot["version"]) == (
            offset,
            "complete",
            leader.epoch,
            1,
        )
        assert snapshot["bytes"] == files(tmp_path)[0].stat().st_size
        assert " complete " in shell.run("replica", "show", LOG)
    shown = shell.json("replica", "show", LOG, "--snapshots", str(tmp_path))
    assert shown["replicas"] == []
    assert [each["offset"] for each in shown["stores"][0]["snapshots"]] == [offset]
    elsewhere = shell.json("replica", "show", LOG, "--snapshots", str(tmp_path / "none"))
    assert "no such directory on this machine" in elsewhere["stores"][0]["error"]


def test_snapshots_are_read_and_compared_with_the_log(shell: CliShell, tmp_path: Path) -> None:
    with leading(shell, snapshots=str(tmp_path)) as leader:
        for _ in range(2):
            leader.submit(b"x")
            leader.snapshot()
        verified = shell.json("replica", "verify", LOG)
        assert (verified["healthy"], verified["problems"]) == (True, [])
        assert [each["state"] for each in verified["snapshots"]] == ["whole", "whole"]
        older, newest = files(tmp_path)
        content = newest.read_bytes()
        newest.write_bytes(content[:-14] + b"?" + content[-13:])
        shown = shell.json("replica", "show", LOG)["stores"][0]["snapshots"]
        assert [each["state"] for each in shown] == ["complete", "complete"], "it is not read"
        verified = shell.json("replica", "verify", LOG, code=1)
        assert [each["state"] for each in verified["snapshots"]] == ["damaged", "whole"]
        assert "another checksum" in verified["problems"][0]
        ahead = newest.with_name(f"{leader.applied + 100:020d}.snapshot")
        newest.write_bytes(content)
        newest.rename(ahead)
        assert "it is one of log" in shell.json("replica", "verify", LOG, code=1)["problems"][0]
        ahead.unlink()
        leader.submit(b"x")
        truncate_log(LOG, before=leader.applied - 1, uri=shell.uri)
        verified = shell.json("replica", "verify", LOG, code=1)
        assert [each["state"] for each in verified["snapshots"]] == ["behind"]
        assert "no snapshot can be restored" in verified["problems"][0]
        assert int(older.stem) == verified["snapshots"][0]["offset"]


def test_a_snapshot_that_the_log_has_not_reached_is_ahead(shell: CliShell, tmp_path: Path) -> None:
    with leading(shell, snapshots=str(tmp_path)) as leader:
        leader.submit(b"x")
        leader.snapshot()
        [file] = files(tmp_path)
        header = replace(HEADER, incarnation=file.parent.name, offset=10_000, epoch=0)
        write_to(file.parent, header)
        verified = shell.json("replica", "verify", LOG, code=1)
        assert [each["state"] for each in verified["snapshots"]] == ["ahead", "whole"]
        header = replace(header, offset=0, epoch=10**6)
        write_to(file.parent, header)
        verified = shell.json("replica", "verify", LOG, code=1)
        assert verified["snapshots"][2]["state"] == "ahead"


def test_verify_says_that_there_is_nothing_to_read(shell: CliShell, tmp_path: Path) -> None:
    with leading(shell):
        assert "give it with --snapshots" in shell.refused("replica", "verify", LOG)
        refused = shell.refused("replica", "verify", LOG, "--snapshots", str(tmp_path / "none"))
        assert "no such directory" in refused
        assert shell.json("replica", "verify", LOG, "--snapshots", str(tmp_path))["healthy"]
