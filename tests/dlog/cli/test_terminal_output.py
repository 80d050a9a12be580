"""What others have written into logs means nothing to the terminal of who looks at it."""

import json
import re
import sys
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper

import pytest

import dlog
from dlog.cli import main
from dlog.cli.output import escaped, escaped_bytes, json_text
from ledger.errors import LogError
from tests.dlog.cli.cli_shell import CliShell, cli_shell

HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\r\x7f\u200b"
SAFE = r"a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\r\x7f\u200b"
OBEYED = "\x1b\x07\x9b\u202e\r\x7f\u200b"


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        with dlog.Log.open("hostile", uri=made.uri) as log:
            log.append(HOSTILE.encode(), key=HOSTILE.encode(), headers={HOSTILE: HOSTILE.encode()})
            log.append(b"\xff\xfe lines\nand\ttabs", key=None)
        yield made


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda _: True)


def test_what_a_terminal_obeys_is_escaped() -> None:
    assert escaped(HOSTILE) == SAFE
    assert escaped("ä 日本 👍 \t\n") == "ä 日本 👍 \t\n"
    assert escaped_bytes(HOSTILE.encode()) == SAFE.encode()
    assert escaped_bytes(b"\xff\x1b") == rb"\xff\x1b"


def test_json_says_the_same_and_holds_nothing_that_a_terminal_obeys() -> None:
    value = {HOSTILE: [HOSTILE, "\U000e0001", "ä"]}
    assert json.loads(json_text(value)) == value
    assert json_text(value).isprintable()
    assert "ä" in json_text(value)


READING = (
    ["log", "tail", "hostile"],
    ["log", "tail", "hostile", "--offsets"],
    ["log", "tail", "hostile", "--json"],
    ["log", "tail", "hostile", "--format", r"%k %s %h %t\n"],
    ["log", "dump", "hostile", "--records"],
    ["log", "trace", "hostile", "--offset", "0"],
    ["log", "show", "hostile"],
    ["ledger", "read", "0"],
)


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_no_command_shows_a_terminal_what_it_obeys(shell: CliShell, words: list[str]) -> None:
    said = re.sub(r"\x1b\[[01]m", "", shell.invoke(*words).stdout)  # tables have bold headings
    assert not set(OBEYED) & set(said), said
    assert said


@pytest.mark.usefixtures("_terminal")
def test_a_format_may_say_itself_what_a_terminal_obeys(shell: CliShell) -> None:
    said = shell.invoke("log", "tail", "hostile", "-n", "1", "--format", r"\x1b[1m%s\x1b[0m")
    assert said.stdout == f"\x1b[1m{SAFE}\x1b[0m"


@pytest.mark.usefixtures("_terminal")
def test_a_terminal_shows_in_color_how_grave_it_is() -> None:
    with cli_shell() as shell:
        shown = {"TERM": "xterm", "NO_COLOR": ""}
        assert (
            "\x1b[32m\x1b[1mNo problems found\x1b[0m in" in shell.invoke("status", **shown).stdout
        )
        shell.cluster.kill_bookie(0)
        said = shell.invoke("status", **shown).stdout
        assert "\x1b[33m\x1b[1m1 problem found\x1b[0m.\n" in said
        assert "\n\x1b[33m\x1b[1mWARNING\x1b[0m: bookie " in said
        assert "\nNOTE: " in said
        for index in (1, 2):
            shell.cluster.kill_bookie(index)
        said = shell.invoke("doctor", **shown).stdout
        assert "\n\x1b[31m\x1b[1mCRITICAL\x1b[0m: no bookie is registered" in said
        for plain in ({**shown, "NO_COLOR": "1"}, {**shown, "TERM": "dumb"}):
            assert "\x1b" not in shell.invoke("status", **plain).stdout


def test_a_pipe_gets_no_colors(shell: CliShell) -> None:
    assert "\x1b" not in shell.invoke("status", TERM="xterm", NO_COLOR="").stdout


def test_letters_that_a_terminal_has_not_are_written_as_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(written, encoding="iso-8859-1"))
    monkeypatch.setattr("sys.argv", ["dlog", "--help"])
    with pytest.raises(SystemExit):
        main()
    print("r7-日本")
    sys.stdout.flush()
    assert written.getvalue().endswith(rb"r7-\u65e5\u672c" + b"\n")


def test_a_pipe_gets_the_bytes(shell: CliShell) -> None:
    said = shell.invoke("log", "tail", "hostile")
    assert said.stdout_bytes == HOSTILE.encode() + b"\n\xff\xfe lines\nand\ttabs\n"


def test_an_error_that_repeats_what_others_said_is_escaped(
    shell: CliShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise LogError(f"refused by {HOSTILE}")

    monkeypatch.setattr("dlog.aio.admin.log_info", fails)
    assert f"refused by {SAFE}" in shell.refused("log", "show", "hostile")
