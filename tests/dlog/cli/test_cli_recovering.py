"""``dlog bookie recover``, ``where``, ``replace`` and ``rebalance``."""

from collections.abc import Iterator

import pytest

from dlog.testing import cluster
from tests.dlog.cli.cli_shell import CliShell


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    """Four bookies, of which one is gone, and a log with three ledgers."""
    with cluster(bookies=4) as made:
        shell = CliShell(made)
        shell.write("orders")
        made.kill_bookie(gone(shell))
        yield shell


def gone(shell: CliShell) -> int:
    """Return the number of a bookie that the first ledger names."""
    first = shell.json("ledger", "list")[0]
    name = shell.json("ledger", "show", str(first))["fragments"][0]["bookies"][0]
    return [bookie.name for bookie in shell.cluster.bookies].index(name)


def lost_name(shell: CliShell) -> str:
    return next(bookie.name for bookie in shell.cluster.bookies if not bookie.running)


def test_a_bookie_that_runs_is_not_recovered(shell: CliShell) -> None:
    name = next(bookie.name for bookie in shell.cluster.bookies if bookie.running)
    sentence = shell.refused("bookie", "recover", name)
    assert f"bookie {name} is registered" in sentence
    assert "'dlog bookie decommission'" in sentence


def test_an_unknown_bookie_or_target_is_refused(shell: CliShell) -> None:
    assert "no ledger and no cookie names nobody" in shell.refused("bookie", "recover", "nobody")
    sentence = shell.refused("bookie", "recover", lost_name(shell), "--into", "nobody")
    assert "bookie nobody is not there" in sentence
    assert "did you mean" not in sentence
    wrong = lost_name(shell).replace("bookie", "bokie")
    meant = f"; did you mean {lost_name(shell)!r}?"
    for arguments in ("recover", "status", "decommission", "decommission --force --yes"):
        result = shell.invoke("bookie", *arguments.split(), wrong)
        assert result.exit_code == 1
        assert result.output.strip().endswith(meant), (arguments, result.output)


def test_where_shows_who_is_away_before_and_that_all_is_whole_after_the_recovery(
    shell: CliShell,
) -> None:
    name = lost_name(shell)
    first = str(shell.json("ledger", "list")[0])
    found = shell.json("bookie", "where", first, code=1)
    assert found["whole"] is False
    states = {each["bookie"]: each["state"] for each in found["fragments"][0]["bookies"]}
    assert states[name] == "away"
    assert sorted(states.values()) == ["away", "writable", "writable"]
    assert "cannot give 0.." in shell.run("bookie", "where", first, code=1)

    planned = shell.json("bookie", "recover", name, "--dry-run")
    assert planned["outcome"] == "surveyed"
    assert planned["ledgers"] >= 1
    assert planned["bytes"] > 0
    assert (planned["repaired_ledgers"], planned["without_source"]) == (0, [])
    assert " to repair: " in shell.run("bookie", "recover", name, "--dry-run")

    done = shell.json("bookie", "recover", name, "--rate", "0")
    assert done["outcome"] == "complete"
    assert done["copied_entries"] == planned["entries"]
    assert done["left_ledgers"] == 0
    lines = shell.json_lines("bookie", "where", "orders")
    assert len(lines) == 3
    assert all(line["whole"] for line in lines)
    assert name not in shell.run("bookie", "where", "orders")
    assert shell.run("bookie", "recover", name).startswith("nothing names them any more: 0 ledgers")


def test_where_is_what_there_is_only(shell: CliShell) -> None:
    assert shell.refused("bookie", "where", "999").startswith("dlog:")
    assert shell.refused("bookie", "where", "no-log").startswith("dlog:")


@pytest.fixture
def fresh() -> Iterator[CliShell]:
    """As `shell`, for a test of its own."""
    with cluster(bookies=4) as made:
        shell = CliShell(made)
        shell.write("orders")
        made.kill_bookie(gone(shell))
        yield shell


@pytest.mark.slow
def test_a_bookie_that_is_replaced_is_named_by_nothing_and_stays_retired(fresh: CliShell) -> None:
    old = lost_name(fresh)
    new = next(bookie.name for bookie in fresh.cluster.bookies if bookie.running)
    assert "start it first" in fresh.refused("bookie", "replace", old, "nobody", "--yes")
    *reports, done = fresh.json_lines("bookie", "replace", old, new, "--yes", "--rate", "0")
    assert (done["outcome"], done["name"], done["left_ledgers"]) == ("complete", "retired", 0)
    assert done["copied_entries"] == done["entries"] > 0
    assert [report["ledgers_left"] for report in reports] == [0, 0]
    assert all(line["whole"] for line in fresh.json_lines("bookie", "where", "orders"))
    assert "nothing names them any more" in fresh.run("bookie", "recover", old)
    [[retired]] = fresh.json_lines("bookie", "list", "--retired")
    assert (retired["bookie"], retired["emptied"]) == (old, True)
    assert f"replaced it by bookie {new}" in fresh.run("bookie", "list", "--retired")


def test_a_bookie_that_runs_is_not_replaced_nor_without_a_word(fresh: CliShell) -> None:
    one, other = [bookie.name for bookie in fresh.cluster.bookies if bookie.running][:2]
    assert f"a bookie {one} is registered" in fresh.refused(
        "bookie", "replace", one, other, "--yes"
    )
    assert "another name" in fresh.refused("bookie", "replace", one, one, code=2)
    asked = fresh.invoke("bookie", "replace", lost_name(fresh), one, stdin="n\n")
    assert asked.exit_code == 1
    assert "give up the data" in asked.stderr
    states = fresh.json_lines("bookie", "where", "orders", code=1)
    found = {each["state"] for line in states for each in line["fragments"][0]["bookies"]}
    assert "retired" not in found


@pytest.mark.slow
def test_a_rebalancing_moves_what_its_dry_run_says() -> None:
    with cluster(bookies=4) as made:
        shell = CliShell(made)
        made.set_read_only(3)
        shell.write("orders", end=60, roll_every=5)
        made.set_read_only(3, read_only=False)
        planned = shell.json("bookie", "rebalance", "--dry-run")
        assert planned["chosen_ledgers"] > 0
        assert (planned["moved_ledgers"], planned["even"]) == (0, True)
        assert shell.json("bookie", "rebalance", "--dry-run", "--bytes", "1")["chosen_ledgers"] == 0
        assert "ledgers would move" in shell.run("bookie", "rebalance", "--dry-run")
        done = shell.json("bookie", "rebalance", "--rate", "0")
        assert (done["moved_ledgers"], done["failed_ledgers"]) == (planned["chosen_ledgers"], 0)
        assert done["bookies"] == planned["bookies"]
        assert shell.run("bookie", "rebalance").splitlines()[-1] == "0 ledgers moved, 0 B"
        assert shell.json("log", "verify", "orders")["healthy"]


def test_a_bookie_that_is_gone_can_be_given_up_by_force_and_one_that_runs_cannot(
    fresh: CliShell,
) -> None:
    old = lost_name(fresh)
    running = next(bookie.name for bookie in fresh.cluster.bookies if bookie.running)
    force = ("bookie", "decommission", "--force")
    assert "is registered" in fresh.refused(*force, running, "--yes")
    assert "no bookie 'nobody' is known" in fresh.refused(*force, "nobody", "--yes")
    assert fresh.invoke(*force, old, stdin="n\n").exit_code == 1
    planned = fresh.json("bookie", "recover", old, "--dry-run")
    done = fresh.json(*force, old, "--yes")
    assert (done["outcome"], done["ledgers_left"]) == ("retired", planned["ledgers"])
    states = fresh.json_lines("bookie", "where", "orders", code=1)
    found = {each["state"] for line in states for each in line["fragments"][0]["bookies"]}
    assert found == {"writable", "retired"}
    assert "it is named by " in fresh.run(*force, old, "--yes")
