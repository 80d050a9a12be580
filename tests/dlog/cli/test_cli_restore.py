"""``dlog ledger close-at`` and ``dlog metadata accept-restore``, ``reconcile`` and ``copy``."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import LedgerClient
from tests.dlog.cli.cli_shell import CliShell, cli_shell


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


def left_open(shell: CliShell, entries: int = 10) -> str:
    """Return the id of a ledger whose writer has gone."""

    async def write() -> int:
        client = await LedgerClient.connect(shell.uri)
        try:
            writer = await client.create()
            for number in range(entries):
                await writer.add(b"%d" % number)
            return int(writer.ledger_id)
        finally:
            await client.close()

    return str(asyncio.run(write()))


def state(shell: CliShell, ledger: str) -> tuple[str, int | None]:
    found = shell.json("ledger", "show", ledger)
    return found["state"], found["last_entry"]


def test_what_would_be_cut_is_shown_for_each_bookie_and_nothing_is_done_without_a_yes(
    shell: CliShell,
) -> None:
    ledger = left_open(shell)
    asked = shell.invoke("ledger", "close-at", ledger, "5", stdin="n\n")
    assert asked.exit_code == 1
    assert f"Close ledger {ledger} at 5?" in asked.stderr
    rows = [line.split() for line in asked.stdout.splitlines() if "member" in line]
    assert len(rows) == 3
    assert all(row[1:4] == ["member", "9", "4"] for row in rows)
    assert all(row[5] == "no" for row in rows), "nobody is fenced by a look"
    assert "bookies hold all entries up to 9;" in asked.stdout
    assert state(shell, ledger) == ("OPEN", None)


def test_a_ledger_is_closed_where_the_operator_says_and_says_what_it_cut(shell: CliShell) -> None:
    ledger = left_open(shell)
    assert "--below-confirmed" in shell.refused("ledger", "close-at", ledger, "3", "--yes")
    assert "no reachable bookie returns entry 10" in shell.refused(
        "ledger", "close-at", ledger, "10", "--yes"
    )
    done = shell.json("ledger", "close-at", ledger, "3", "--yes", "--below-confirmed")
    assert (done["state"], done["last_entry"], done["cut"]) == ("CLOSED", 3, 6)
    assert done["confirmed"] >= 8
    assert [each["fenced"] for each in done["bookies"]] == [True, True, True]
    assert [each["cut"] for each in done["bookies"]] == [6, 6, 6]
    assert state(shell, ledger) == ("CLOSED", 3)
    assert "is closed already, and its last entry is 3" in shell.refused(
        "ledger", "close-at", ledger, "2", "--yes"
    )


def test_a_closed_end_is_printed_for_people_too(shell: CliShell) -> None:
    ledger = left_open(shell)
    result = shell.invoke("ledger", "close-at", ledger, "9", "--yes")
    assert result.exit_code == 0
    assert f"ledger {ledger} is CLOSED at 9; 0 entries cut" in result.stderr
    assert shell.run("ledger", "read", ledger, "--first", "9").startswith("9\t")


def test_a_restore_is_not_accepted_beside_bookies_that_run(shell: CliShell) -> None:
    sentence = shell.refused("metadata", "accept-restore", "--yes")
    assert "bookies are registered" in sentence
    assert "stop them all" in sentence


def test_nothing_is_reconciled_that_nobody_accepted(shell: CliShell) -> None:
    ledger = left_open(shell)
    assert "'dlog metadata accept-restore'" in shell.refused("metadata", "reconcile")
    assert state(shell, ledger) == ("OPEN", None)


def test_a_namespace_in_use_is_not_copied(shell: CliShell, tmp_path: Path) -> None:
    target = (tmp_path / "copy").as_uri()
    assert "is in use, by bookies" in shell.refused("metadata", "copy", shell.uri, target)
