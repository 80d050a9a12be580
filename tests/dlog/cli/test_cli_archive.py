"""``dlog log archive`` and ``dlog archiver``: what moved, what did not, and the exit code."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.protocol import archive
from tests.dlog.cli.cli_shell import CliShell, cli_shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliShell]:
    """A log of 30 records in three closed segments, which has object storage, with one each."""
    monkeypatch.setattr(archive, "SMALL_BYTES", -1)
    with cli_shell() as made:
        made.write("a")
        made.run("log", "settings", "set", "a", f"archive=file://{tmp_path}/objects")
        yield made


def test_an_archived_log_is_shown_traced_and_read(shell: CliShell, tmp_path: Path) -> None:
    before = shell.run("log", "tail", "a")
    report = shell.json("log", "archive", "a")
    assert (report["log"], len(report["archived"]), report["released"]) == ("a", 3, [1, 2, 3])
    assert (report["failures"], report["waiting"], report["orphans"]) == ([], 0, 0)
    shown = shell.json("log", "show", "a")
    assert [each["object"] for each in shown["segments"]] == report["archived"]
    assert not any(each["on_bookies"] for each in shown["segments"])
    folder = tmp_path / "objects" / shown["incarnation"]
    assert f"file://{folder}\n" in shell.run("log", "show", "a")
    assert shell.run("log", "tail", "a") == before
    traced = shell.run("log", "trace", "a", "--offset", "15")
    assert f"file://{folder}/{report['archived'][1]}" in traced
    assert "left the bookies" in traced
    found = shell.json("log", "trace", "a", "--offset", "15")
    assert (found["object"], found["ensemble"], found["whole"]) == (report["archived"][1], [], True)
    assert shell.json("log", "verify", "a")["healthy"] is True
    assert "segments archived       0" in shell.run("log", "archive", "a", "--now")


def test_a_truncation_names_the_objects_that_go_and_an_audit_those_that_are_missing(
    shell: CliShell, tmp_path: Path
) -> None:
    names = shell.json("log", "archive", "a")["archived"]
    plan = shell.json("log", "truncate", "a", "--before", "15", "--dry-run")
    assert (plan["objects"], plan["ledgers"]) == (names[:1], [])
    text = shell.run("log", "truncate", "a", "--before", "15", "--dry-run")
    assert f"its object {names[1]} stays until all of it can go" in text
    (path,) = (tmp_path / "objects").glob(f"*/{names[2]}")
    path.unlink()
    audited = shell.json("log", "audit", code=1)
    assert [(each["segment"], each["object"]) for each in audited["missing_objects"]] == [
        (3, names[2])
    ]
    assert f"object {names[2]} of segment 3 does not exist" in shell.run("log", "audit", code=1)
    assert "does not exist" in shell.invoke("log", "tail", "a").stderr


def test_what_could_not_be_archived_is_told_and_is_the_exit_code(
    shell: CliShell, tmp_path: Path
) -> None:
    shell.write("plain", end=5)
    assert "set archive to its URI" in shell.refused("log", "archive", "plain")
    folder = tmp_path / "objects" / shell.json("log", "show", "a")["incarnation"]
    folder.parent.mkdir()
    folder.write_bytes(b"a file where the log's folder is to be")
    assert len(shell.json("log", "archive", "a", code=1)["failures"]) == 3
    for command in (("archiver", "run", "--once"), ("log", "archive", "a")):
        result = shell.invoke(*command)
        assert (result.exit_code, "segment 1: object storage" in result.stderr) == (1, True)
    folder.unlink()
    assert shell.json("log", "archive", "a")["released"] == [1, 2, 3]


def test_an_archiver_looks_after_all_logs_that_have_object_storage(shell: CliShell) -> None:
    shell.write("plain", end=5)
    done = shell.json("archiver", "run", "--once", "--rate", "10M")
    assert (done["logs"], done["troubles"]) == (1, [])
    assert [(each["log"], each["released"]) for each in done["reports"]] == [("a", [1, 2, 3])]
    assert "looked after 1 log: 0 segments archived" in shell.run("archiver", "run", "--once")
    shell.refused("archiver", "run", "--rate", "-1", code=2)
    shell.refused("archiver", "run", "--interval", "0", code=2)


@pytest.mark.spark
def test_a_table_is_shown_listed_verified_and_rebuilt(shell: CliShell, tmp_path: Path) -> None:
    assert "set archive_table to parquet" in shell.invoke("table", "show", "a").stderr
    shell.run("log", "settings", "set", "a", "archive_table=parquet")
    assert shell.json("log", "archive", "a", "--now")["table_rows"] == 30
    shown = shell.json("table", "show", "a")
    assert (shown["first"], shown["end"], shown["waiting"], shown["log_first"]) == (0, 30, 0, 0)
    listed = shell.json("table", "files", "a")
    assert sum(each["rows"] for each in listed) == 30
    lines = shell.run("table", "files", "a").splitlines()
    assert lines == [each["uri"] for each in listed]
    assert all(Path(line.removeprefix("file://")).exists() for line in lines)
    assert shell.json("table", "verify", "a")["healthy"] is True
    assert "bytes" in shell.run("table", "show", "a")
    shell.run("log", "truncate", "a", "--before", "15")
    assert shell.json("table", "rebuild", "a")["rows"] == 15
    assert shell.json("table", "show", "a")["first"] == 15
    Path(shell.run("table", "files", "a").splitlines()[0].removeprefix("file://")).unlink()
    damaged = shell.invoke("table", "verify", "a")
    assert damaged.exit_code == 1
    assert "does not exist" in damaged.stderr
    assert "rows" in shell.run("table", "rebuild", "a", "--later")
    assert shell.json("table", "show", "a")["waiting"] == 15


@pytest.mark.spark
def test_a_table_that_cannot_be_extended_is_told_and_is_the_exit_code(
    shell: CliShell, tmp_path: Path
) -> None:
    shell.run("log", "settings", "set", "a", "archive_table=parquet")
    shell.run("log", "archive", "a")
    (path,) = (tmp_path / "objects").glob("*.json")
    path.write_bytes(b"damaged")
    report = shell.json("log", "archive", "a", code=1)
    assert "the manifest of its table" in report["table_error"]
    assert "its table:" in shell.invoke("log", "archive", "a").stderr
    assert shell.invoke("archiver", "run", "--once").exit_code == 1


def test_segments_come_back_to_bookies_for_some_time(shell: CliShell) -> None:
    before = shell.run("log", "tail", "a")
    shell.run("log", "archive", "a")
    report = shell.json("log", "restore-local", "a", "--from", "10", "--to", "20", "--keep", "2d")
    ((copy,), bytes_restored) = (report["restored"], report["bytes"])
    assert (copy["segment"], report["failures"], report["waiting"]) == (2, [], 0)
    assert bytes_restored > 0
    shown = shell.json("log", "show", "a")["segments"]
    assert [each["local_copy"] for each in shown] == [None, copy["ledger"], None]
    assert f"ledger {copy['ledger']}, " in shell.run("log", "show", "a")
    traced = shell.run("log", "trace", "a", "--offset", "15")
    assert f"read from ledger {copy['ledger']}, its local copy" in traced
    assert shell.run("log", "tail", "a") == before
    assert "segments restored             2" in shell.run("log", "restore-local", "a")
    assert "it is not above 5" in shell.refused("log", "restore-local", "a", "--from=5", "--to=5")
    shell.run("log", "restore-local", "a", "--keep", "0")
    assert shell.json("log", "archive", "a")["copies_dropped"] == 3
    assert shell.run("log", "tail", "a") == before
