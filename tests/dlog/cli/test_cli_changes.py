"""``dlog changes list``, and that no command which changes something is forgotten."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from dlog.cli.app import app
from dlog.cli.commands import NOT_WRITTEN, DeclaredCommand
from tests.dlog.cli.cli_shell import CliShell, cli_shell


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command of the program, and the words that name it."""

    def walk(command: Any, words: list[str]) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield " ".join(words), command
            return
        for name, inner in command.commands.items():
            yield from walk(inner, [*words, name])

    yield from walk(get_command(app), [])


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        made.write("flights")
        made.audit = "auto"
        yield made


def test_each_command_says_whether_it_changes_something() -> None:
    assert [
        words for words, command in commands() if not isinstance(command, DeclaredCommand)
    ] == []


def test_what_decides_whether_a_command_changes_something_is_an_option_of_it() -> None:
    deciding = []
    for words, command in commands():
        if (changes := command.effect.changes) is not None:
            given = {param.name: param.default for param in command.params}
            if not changes(given):
                deciding.append(words)
    assert deciding == [
        "log verify",
        "log audit",
        "janitor run",
        "archiver run",
        "bookie format",
        "autorecovery throttle",
    ]


def test_no_option_that_is_written_down_is_a_secret() -> None:
    recorded = [command for _, command in commands() if command.effect.changes is not None]
    assert len(recorded) > 30
    for command in recorded:
        for name in {param.name for param in command.params} - NOT_WRITTEN:
            assert not any(word in name for word in ("password", "secret", "token", "auth_"))


def listed(shell: CliShell) -> list[dict[str, object]]:
    return shell.json_lines("changes", "list")


def test_a_change_at_the_shell_is_written_down_with_what_it_was_given(shell: CliShell) -> None:
    shell.run("log", "truncate", "flights", "--before", "10")
    last = listed(shell)[-1]
    assert (last["command"], last["outcome"]) == ("log truncate", "done")
    assert last["arguments"] == {"log": "flights", "before": "10"}
    assert "@" in str(last["who"])
    told = shell.refused("log", "truncate", "flights", "--before", "99")
    last = listed(shell)[-1]
    assert last["outcome"] == "failed"
    assert str(last["error"]) in told
    line = next(each for each in shell.run("changes", "list").splitlines() if "before=99" in each)
    assert "log truncate" in line
    assert str(last["error"]) in line


def test_looking_is_not_written_down(shell: CliShell) -> None:
    before = listed(shell)
    shell.run("log", "truncate", "flights", "--before", "20", "--dry-run")
    shell.run("log", "audit")
    shell.run("autorecovery", "throttle")
    shell.run("log", "settings", "get", "flights")
    shell.invoke("log", "truncate", "flights", DLOG_AUDIT="off")
    assert listed(shell) == before


def test_passwords_and_the_namespace_are_not_written_down(shell: CliShell) -> None:
    shell.invoke("ledger", "recover", "1", "--password", "sesame", "--uri", shell.uri)
    last = listed(shell)[-1]
    assert last["command"] == "ledger recover"
    assert last["arguments"] == {"ledger": 1}


def test_who_requires_it_is_refused_without_bookies() -> None:
    with cli_shell() as shell:
        shell.write("a")
        for index in range(3):
            shell.cluster.kill_bookie(index)
        result = shell.invoke("log", "settings", "set", "a", "codec=lz4", DLOG_AUDIT="required")
        assert result.exit_code == 1
        assert "was not started: it cannot be recorded" in result.stderr
        assert shell.json("log", "settings", "get", "a")["codec"] == "none"
        result = shell.invoke("log", "settings", "set", "a", "codec=lz4", DLOG_AUDIT="auto")
        assert result.exit_code == 0
        assert "was not recorded in the log '_audit'" in result.stderr


def test_dlogs_own_log_is_listed_when_it_is_asked_for(shell: CliShell) -> None:
    shell.run("log", "settings", "set", "flights", "codec=none")  # the log is made by a change
    listed_only = shell.invoke("log", "list")
    assert "_audit" not in listed_only.stdout
    assert "1 log of dlog's own not listed; --all lists all" in listed_only.stderr
    everything = shell.invoke("log", "list", "--all")
    assert "_audit" in everything.stdout.splitlines()
    assert everything.stderr == ""
    assert "_audit/" not in shell.run("log", "list", "--all", "--no-recursive")
    assert shell.json("status")["logs"]["own_logs"] == 1
    assert " and 1 of dlog's own;" in shell.run("status")
    assert shell.run("log", "list", "--prefix", "_") == "_audit\n"
    assert shell.json_lines("log", "tail", "_audit")


def test_a_change_that_a_bookie_did_not_make_is_written_down_as_failed() -> None:
    with cli_shell() as shell:
        shell.write("flights")
        name = shell.cluster.bookies[0].name
        result = shell.invoke("bookie", "decommission", name, "--yes", DLOG_AUDIT="auto")
        assert result.exit_code == 1
        last = listed(shell)[-1]
        assert (last["command"], last["outcome"]) == ("bookie decommission", "failed")
        assert last["error"] == "exit code 1"
