"""A namespace that is not there: said so, and not made by whoever only looks."""

import asyncio
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from dlog.aio import Log as AsyncLog
from dlog.cli.app import app
from dlog.cli.completion import complete_log
from dlog.config import default_uri
from ledger.errors import NoNamespace
from ledger.metastore import open_store
from ledger.metastore.port import create_node
from ledger.registry import BookieRegistration, register
from tests.namespaces import make, opened


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DLOG_URI", "DLOG_CONFIG", "DLOG_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def dlog(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="dlog", input=stdin)


@pytest.mark.parametrize(
    "arguments",
    [
        ["log", "list"],
        ["log", "create", "x"],
        ["log", "append", "x"],
        ["log", "tail", "x"],
        ["log", "delete", "x", "--yes"],
        ["consumer", "list", "x"],
        ["leader", "wait", "x", "--timeout", "250ms"],
        ["janitor", "run", "--once"],
        ["bookie", "list"],
        ["bookie", "status"],
        ["ledger", "list"],
        ["access", "grant", "cn:alice", "operator"],
        ["access", "list"],
        ["quota", "set", "logs", "a", "--read-requests", "1"],
        ["quota", "list"],
    ],
    ids=" ".join,
)
def test_a_directory_that_is_not_there_is_an_error_and_stays_away(
    arguments: list[str], tmp_path: Path
) -> None:
    missing = tmp_path / "mistyped"
    result = dlog(*arguments, "--uri", missing.as_uri(), stdin="a record\n")
    assert result.exit_code == 1
    assert f"there is no namespace at {missing.as_uri()}" in result.stderr
    assert f"dlog init '{missing.as_uri()}'" in result.stderr
    assert not missing.exists()


def test_a_directory_without_a_namespace_in_it_does_not_get_one(tmp_path: Path) -> None:
    (tmp_path / "emptied").mkdir()
    result = dlog("log", "list", "--uri", (tmp_path / "emptied").as_uri())
    assert result.exit_code == 1
    assert "there is no namespace" in result.stderr
    assert not list((tmp_path / "emptied").iterdir())


def test_a_namespace_whose_database_is_gone_is_damaged_and_not_made_anew(tmp_path: Path) -> None:
    here = tmp_path / "namespace"

    async def make() -> None:
        await (await open_store(here.as_uri())).close()

    asyncio.run(make())
    (here / "metadata.sqlite").unlink()
    result = dlog("log", "list", "--uri", here.as_uri())
    assert result.exit_code == 1
    assert "it is gone" in result.stderr
    assert "put back a backup" in result.stderr
    assert not (here / "metadata.sqlite").exists()


@pytest.mark.parametrize("command", ["log list", "log append x", "log tail x", "status", "doctor"])
def test_before_the_first_cluster_its_default_place_is_not_made_either(
    home: Path, command: str
) -> None:
    result = dlog(*command.split(), stdin="a record\n")
    assert result.exit_code == 1
    assert "there is no local cluster: " in result.stderr
    assert "start one with 'dlog up'" in result.stderr
    assert "dlog init" not in result.stderr
    assert not (home / ".dlog").exists()


async def test_programs_hear_the_same_of_a_local_cluster_that_was_never_started() -> None:
    with pytest.raises(NoNamespace, match="start one with 'dlog up'"):
        await AsyncLog.open("x")


def test_a_local_cluster_that_was_stopped_is_started_by_dlog_up(home: Path) -> None:
    make(default_uri())
    records = home / "records"
    records.write_text("a record\n")
    result = dlog("log", "append", "x", "--file", str(records))
    assert result.exit_code == 1
    assert "'dlog up' starts the bookies of the local cluster" in result.stderr
    assert "Start the bookies: with 'dlog up' for" in dlog("status").stdout


def test_a_wrong_command_line_is_told_before_a_namespace_that_is_not_there() -> None:
    assert dlog("log", "tail", "x", "--start", "yesterday").exit_code == 2


def test_completion_makes_nothing_either(tmp_path: Path) -> None:
    missing = tmp_path / "mistyped"

    class Asked(typer.Context):
        def __init__(self) -> None:
            self.params = {"uri": missing.as_uri()}

    assert complete_log(Asked(), "") == []
    assert not missing.exists()


def test_a_registration_that_cannot_be_read_is_told_and_the_others_are_listed(
    tmp_path: Path,
) -> None:
    uri = (tmp_path / "namespace").as_uri()

    async def command() -> Result:
        store = await opened(uri)
        await create_node(store, "/cookies/good")
        await register(store, BookieRegistration("good", "host:3181", "i1"))
        await store.create("/bookies/readonly/bad", b"\xff")
        result = await asyncio.to_thread(dlog, "bookie", "list", "--uri", uri)
        await store.close()
        return result

    result = asyncio.run(command())
    assert result.exit_code == 1
    assert "good" in result.stdout
    assert "left out: metadata at /bookies/readonly/bad cannot be read" in result.stderr
