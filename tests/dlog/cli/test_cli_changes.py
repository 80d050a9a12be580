"""``dlog changes list``, and that no command which changes something is forgotten."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command

from dlog.cli.app import app
from dlog.cli.change_records import CHANGING, NOT_WRITTEN
from tests.dlog.cli.cli_shell import CliShell, cli_shell

LOOKING_OF = {
    "": "status doctor completion",
    "changes ": "list",
    "log ": "list exists show watch tail trace count dump seek",
    "log settings ": "get",
    "consumer ": "list show lag",
    "leader ": "list show wait",
    "ledger ": "list show read underreplicated",
    "access ": "list check",
    "cluster ": "status",
    "quota ": "list",
    "tls ": "show",
    "debug ": "bundle",
    "bookie ": "list status ready where check mark",
    "bookie entrylog ": "dump",
    "bookie index ": "dump",
    "bookie journal ": "dump",
    "autorecovery ": "status",
}
LOOKING = {group + name for group, names in LOOKING_OF.items() for name in names.split()}
SERVING = {"up", "demo", "console", "bookie start", "autorecovery start"}
DATA = {"log append", "perf append", "perf tail", "perf standby"}
"""What applications do, too; there may be millions."""
FILES = {
    "init": "there is no log before there is a namespace",
    "key new": "a file of keys",
    "tls init": "an authority's files",
    "tls issue": "an authority's files",
    "tls renew": "an authority's files",
    "bookie index rebuild": "files of one bookie, which is stopped",
    "metadata copy": "nothing uses the namespace",
    "metadata accept-restore": "no bookie is there to write it down; the store has its reason",
    "bookie accept-loss": "files of one bookie, which is stopped; it tells the cluster itself",
    "metadata accept-loss": "the store is stopped, and no log can be written",
}


def commands(group: typer.Typer) -> Iterator[str]:
    def walk(command: object, words: list[str]) -> Iterator[str]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(words)
            return
        for name, each in inner.items():
            yield from walk(each, [*words, name])

    yield from walk(get_command(group), [])


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        made.write("flights")
        made.audit = "auto"
        yield made


def test_each_command_either_changes_something_or_is_known_not_to() -> None:
    known = {*CHANGING, *LOOKING, *SERVING, *DATA, *FILES}
    found = set(commands(app))
    assert found == known
    assert not set(CHANGING) & (LOOKING | SERVING | DATA | set(FILES))


def test_no_option_that_is_written_down_is_a_secret() -> None:
    for words in CHANGING:
        command: Any = get_command(app)
        for word in words.split():
            command = command.commands[word]
        names = {each.name for each in command.params} - NOT_WRITTEN
        for name in names:
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
        assert "was not begun, as it cannot be written down" in result.stderr
        assert shell.json("log", "settings", "get", "a")["codec"] == "none"
        result = shell.invoke("log", "settings", "set", "a", "codec=lz4", DLOG_AUDIT="auto")
        assert result.exit_code == 0
        assert "was not written down in the log '_audit'" in result.stderr


def test_dlogs_own_log_is_listed_when_it_is_asked_for(shell: CliShell) -> None:
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
