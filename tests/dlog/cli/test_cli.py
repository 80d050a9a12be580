"""The command line without a cluster: usage, errors, exit codes, how things are shown."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner, Result

from dlog.cli import bookie_main
from dlog.cli.app import app
from dlog.cli.options import parse_start
from dlog.cli.output import format_bytes, format_time, json_bytes
from dlog.cli.runner import run
from dlog.installation import OtherDlogInstalled, check_own_package
from dlog.position import DLSN, Txid
from ledger.errors import NoSuchLedger


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DLOG_URI", "DLOG_CONFIG", "DLOG_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def dlog(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="dlog")


def commands(group: Any, words: str = "") -> dict[str, Any]:
    """Return each command by its words, those of groups below theirs."""
    found: dict[str, Any] = {}
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, f"{words}{word} ")
        else:
            found[f"{words}{word}"] = command
    return found


COMMANDS = commands(get_command(app))
del COMMANDS["completion"]
WITHOUT_JSON = {"demo", "bookie start", "autorecovery start"}
WITHOUT_CLUSTER = {"demo", "init", "up", "tls show", "key new", "metadata copy"}


def options(command: Any) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


def test_all_commands_are_known_here() -> None:
    assert COMMANDS.keys() >= {"up", "log truncate", "log settings set", "janitor run"}


def test_help_prints_what_a_command_does_its_options_and_its_examples() -> None:
    for words in ("up", "log settings set", "bookie start"):
        result = dlog(*words.split(), "--help")
        assert result.exit_code == 0
        assert COMMANDS[words].help.split(".")[0] in result.output
        assert "Examples:" in result.output
        assert f"dlog {words}" in result.output
        shown = [param for param in COMMANDS[words].params if not param.hidden]
        names = [param.opts[0] for param in shown if param.opts[0].startswith("--")]
        assert [name for name in names if name not in result.output] == []


def test_the_help_of_each_command_teaches_by_examples() -> None:
    without = [
        words
        for words, command in COMMANDS.items()
        if f" {words}" not in command.epilog.partition("Examples:")[2]
    ]
    assert without == []


def test_each_command_takes_a_uri_and_most_speak_json() -> None:
    for words, command in COMMANDS.items():
        # A command on the files of a stopped bookie takes their directory, and no namespace.
        has_place = options(command) & {"--uri", "--dir"}
        assert has_place or words in WITHOUT_CLUSTER, words
        assert "--json" in options(command) or words in WITHOUT_JSON, words


def test_the_documentation_names_each_command() -> None:
    text = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    for words in COMMANDS:
        # Those of bookies have a page of their own.
        named = "bookie ..." if words.startswith("bookie ") else words
        assert f"`dlog {named}" in text, words


def test_the_documentation_names_no_option_that_does_not_exist() -> None:
    lines = (Path(__file__).parents[3] / "docs" / "cli.md").read_text().splitlines()
    for words, command in COMMANDS.items():
        rows = [line for line in lines if line.startswith(f"| `dlog {words}")]
        named = {option for row in rows for option in re.findall(r"--[a-z-]+", row)}
        assert sorted(named - options(command)) == [], words


def test_the_help_documents_the_exit_codes() -> None:
    output = " ".join(dlog("--help").output.split())
    assert "0 done; 1 refused or failed" in output
    assert "2 the command line is wrong" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["log", "tail"],
        ["log", "tail", "x", "--no-such-option"],
        ["log", "tail", "x", "--start", "yesterday"],
        ["log", "tail", "x", "--limit", "-1"],
        ["log", "append", "x", "--file", "/no/such/file"],
        ["log", "truncate", "x"],
        ["ledger", "show", "one"],
        ["ledger", "show", "--", "-1"],
        ["up", "--bookies", "0"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str]) -> None:
    result = dlog(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["log", "list"],
        ["log", "show", "x"],
        ["log", "create", "x"],
        ["log", "tail", "x"],
        ["ledger", "show", "1"],
        ["bookie", "list"],
        ["bookie", "start", "--dir", "b"],
    ],
    ids=" ".join,
)
def test_a_uri_that_means_nothing_is_one_sentence_and_exits_with_1(arguments: list[str]) -> None:
    result = dlog(*arguments, "--uri", "http://example.org/")
    assert result.exit_code == 1
    assert "'http' is not known" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_a_misspelt_variable_stops_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_URL", "file:///x")
    result = dlog("log", "list")
    assert result.exit_code == 1
    assert "DLOG_URL is unknown" in result.stderr


def test_the_program_bookie_is_bookie_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bookie", "--help"])
    with pytest.raises(SystemExit) as caught:
        bookie_main()
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "Usage: bookie" in shown
    assert "--die-with-parent" in shown


def test_the_version_is_printed() -> None:
    result = dlog("--version")
    assert result.exit_code == 0
    package, formats = result.stdout.splitlines()
    assert package.startswith("dlog-ledgers ")
    assert formats.startswith("wire 2; ")
    assert "record batch 6" in formats


def test_another_projects_package_of_the_name_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.installation.other_dlog", lambda: "dlog 1.0.5")
    with pytest.raises(OtherDlogInstalled, match=r"another project's package 'dlog' \(dlog 1.0.5"):
        check_own_package()
    assert "beside it, and overwriting files of it: dlog 1.0.5" in dlog("--version").stderr


def test_up_refuses_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = dlog("up", "--dir", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert "cannot be used" in result.stderr


async def fails() -> None:
    raise NoSuchLedger(7)


async def breaks() -> None:
    raise ZeroDivisionError("a bug")


async def is_interrupted() -> None:
    raise KeyboardInterrupt


def test_an_error_of_ours_shows_a_traceback_only_for_debugging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught:
        run(fails())
    assert caught.value.exit_code == 1
    assert capsys.readouterr().err == f"dlog: {NoSuchLedger(7)}\n"
    monkeypatch.setenv("DLOG_DEBUG", "1")
    with pytest.raises(typer.Exit):
        run(fails())
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_one_sentence_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught:
        run(breaks())
    assert caught.value.exit_code == 1
    error = capsys.readouterr().err
    assert "internal error: ZeroDivisionError('a bug')" in error
    assert "DLOG_DEBUG=1" in error
    assert "Traceback" not in error


def test_an_interrupted_command_exits_with_130() -> None:
    with pytest.raises(typer.Exit) as caught:
        run(is_interrupted())
    assert caught.value.exit_code == 130


def test_a_command_returns_what_it_found() -> None:
    assert run(asyncio.sleep(0, "found")) == "found"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("start", "start"),
        ("end", "end"),
        ("0", 0),
        ("17", 17),
        ("3:17:0", DLSN(3, 17, 0)),
        ("txid:-5", Txid(-5)),
    ],
)
def test_a_position_is_read_as_it_is_written(text: str, position: object) -> None:
    assert parse_start(text) == position


@pytest.mark.parametrize("text", ["", "-1", "1:2", "a:b:c", "txid:", "txid:x", "begin", "1.5"])
def test_a_position_that_is_none_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="use start, end, an offset"):
        parse_start(text)


def test_bytes_that_are_no_text_are_told_apart_in_json_and_shown_as_digits() -> None:
    assert json_bytes("größe".encode()) == "größe"
    assert json_bytes(b"\xff\x00") == {"base64": "/wA="}
    assert json_bytes(None) is None
    assert format_bytes("größe".encode()) == "größe"
    assert format_bytes(b"\xff\x00") == "0xff00"
    assert format_bytes(b"a\x1b[31mb") == "0x611b5b33316d62", "no terminal is driven by data"


def test_times_are_shown_in_utc_and_unknown_ones_as_a_dash() -> None:
    assert format_time(1_700_000_000_000) == "2023-11-14 22:13:20Z"
    assert format_time(0) == "-"
