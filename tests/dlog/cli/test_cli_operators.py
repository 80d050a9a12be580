"""``dlog consumer|leader|janitor``: what operators look at and leave running."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

import dlog
from dlog.aio.maintain.janitor import Janitor
from dlog.sync.loop_thread import LoopThread
from leader import Term, candidates, contested_logs
from ledger.errors import HandleClosed
from ledger.metastore import open_store
from ledger.metastore.port import MetadataStore
from tests.dlog.cli.cli_shell import CliShell, cli_shell
from tests.patience import patient_campaign
from tests.waiting import eventually

T = TypeVar("T")


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


def on_loop(call: Callable[[], Coroutine[object, object, T]]) -> T:
    return LoopThread.get().run(call())


def consumed(shell: CliShell, log: str, name: str, position: int) -> None:
    with dlog.Log.consumer(name, log, uri=shell.uri, start=position) as consumer:
        consumer.commit(position)


def test_consumers_are_listed_with_their_lag(shell: CliShell) -> None:
    shell.write("read", end=10)
    assert shell.json("consumer", "list", "read") == []
    assert "has no consumers" in shell.invoke("consumer", "list", "read").stderr
    consumed(shell, "read", "slow", 2)
    consumed(shell, "read", "quick", 9)
    found = shell.json("consumer", "list", "read")
    assert [(each["consumer"], each["position"], each["lag"]) for each in found] == [
        ("quick", 9, 1),
        ("slow", 2, 8),
    ]
    text = shell.run("consumer", "list", "read")
    assert "slow" in text
    assert "quick" in text
    assert "there is no log" in shell.refused("consumer", "list", "absent")


def test_the_nearest_consumer_is_named_where_one_does_not_exist(shell: CliShell) -> None:
    shell.write("near", end=10)
    consumed(shell, "near", "billing", 4)
    for command in (
        ("show", "near", "biling"),
        ("reset", "near", "biling", "--to", "end"),
        ("delete", "near", "biling", "--yes"),
        ("lag", "near", "biling"),
    ):
        sentence = shell.refused("consumer", *command)
        assert "has no consumer 'biling'" in sentence
        assert sentence.endswith("; did you mean 'billing'?")


def test_a_consumer_is_shown_reset_and_deleted(shell: CliShell) -> None:
    shell.write("shown", end=10)
    consumed(shell, "shown", "c", 4)
    found = shell.json("consumer", "show", "shown", "c")
    assert (found["position"], found["lag"], found["trimmed"], found["in_use_by"]) == (
        4,
        6,
        0,
        None,
    )
    assert found["owner"]
    assert "position" in shell.run("consumer", "show", "shown", "c")
    assert shell.run("consumer", "reset", "shown", "c", "--to", "txid:70") == "7\n"
    assert shell.json("consumer", "reset", "shown", "c", "--to", "start")["position"] == 0
    assert shell.run("consumer", "reset", "shown", "c", "--to", "time:5000") == "5\n"
    assert shell.json("consumer", "show", "shown", "c")["position"] == 5
    shell.refused("consumer", "reset", "shown", "c", "--to", "soon", code=2)
    shell.refused("consumer", "reset", "shown", "c", code=2)
    assert "no consumer" in shell.refused("consumer", "reset", "shown", "x", "--to", "end")
    assert "did you mean" not in shell.refused("consumer", "show", "shown", "x")
    assert shell.invoke("consumer", "delete", "shown", "c", stdin="n\n").exit_code == 1
    assert shell.json("consumer", "delete", "shown", "c", "--yes")["deleted"] is True
    for command in (["show", "shown", "c"], ["delete", "shown", "c", "-y"], ["lag", "shown", "c"]):
        assert "no consumer" in shell.refused("consumer", *command)


def test_a_consumer_in_exclusive_use_is_not_deleted(shell: CliShell) -> None:
    shell.write("busy", end=3)
    with dlog.Log.consumer("c", "busy", uri=shell.uri, exclusive=True):
        user = shell.json("consumer", "show", "busy", "c")["in_use_by"]
        assert user
        assert user in shell.refused("consumer", "delete", "busy", "c", "--yes")
        assert user in shell.refused("log", "tail", "busy", "--consumer", "c", "--exclusive")
    shell.run("consumer", "delete", "busy", "c", "--yes")


def test_lag_may_be_the_exit_code(shell: CliShell) -> None:
    shell.write("late", end=20)
    consumed(shell, "late", "a", 20)
    consumed(shell, "late", "b", 5)
    assert shell.run("consumer", "lag", "late") == "a\t0\nb\t15\n"
    assert shell.run("consumer", "lag", "late", "b") == "15\n"
    assert shell.json("consumer", "lag", "late") == {
        "a": {"lag": 0, "trimmed": 0},
        "b": {"lag": 15, "trimmed": 0},
    }
    shell.run("consumer", "lag", "late", "--max", "15")
    shell.run("consumer", "lag", "late", "--max", "14", code=1)
    shell.run("consumer", "lag", "late", "a", "--max", "0")
    shell.run("log", "truncate", "late", "--before", "10")
    assert shell.run("consumer", "lag", "late", "b") == "15\n", "what was trimmed counts"
    assert shell.json("consumer", "lag", "late")["b"] == {"lag": 10, "trimmed": 5}
    shell.run("consumer", "lag", "late", "--max", "14", code=1)
    shell.refused("consumer", "lag", "late", "--max", "-1", code=2)


@contextmanager
def candidates_of(shell: CliShell, log: str, *names: str) -> Iterator[None]:
    """The first of *names* leads, the others wait in this order."""
    stores: list[MetadataStore] = []
    campaigns: list[asyncio.Task[Term]] = []

    async def stand(name: str) -> None:
        store = await open_store(shell.uri)
        stores.append(store)
        seen = len(await candidates(store, log))
        campaigns.append(asyncio.create_task(patient_campaign(store, log, candidate=name)))

        async def stands() -> bool:
            return len(await candidates(store, log)) > seen

        await eventually(stands, f"{name} stands for election")

    async def end() -> None:
        for task in reversed(campaigns):
            if not task.done():
                task.cancel()
        await asyncio.gather(*campaigns, return_exceptions=True)
        for task in campaigns:
            if not task.cancelled():
                await task.result().resign()
        for store in stores:
            await store.close()

    try:
        for name in names:
            on_loop(lambda name=name: stand(name))  # type: ignore[misc]
        yield
    finally:
        on_loop(end)


@pytest.mark.slow
def test_who_leads_and_who_waits_is_shown(shell: CliShell) -> None:
    assert shell.json("leader", "list") == []
    assert "no log has a leader" in shell.invoke("leader", "list").stderr
    assert "nobody leads log 'eu/a'" in shell.refused("leader", "show", "eu/a")
    with candidates_of(shell, "eu/a", "first", "second", "third"):
        found = shell.json("leader", "show", "eu/a")
        assert found["candidate"] == "first"
        assert [each["candidate"] for each in found["waiting"]] == ["second", "third"]
        assert shell.json("leader", "list") == [found]
        assert shell.json("leader", "list", "--prefix", "us/") == []
        text = shell.run("leader", "show", "eu/a")
        assert "first" in text
        assert "second, third" in text
        assert "eu/a" in shell.run("leader", "list")
        for command in (("show", "eu/aa"), ("wait", "eu/aa", "--timeout", "0.1")):
            sentence = shell.refused("leader", *command)
            assert "leads log 'eu/aa'" in sentence
            assert sentence.endswith("; did you mean 'eu/a'?")
        shell.run("log", "create", "eu/ab")
        assert "did you mean" not in shell.refused("leader", "show", "eu/ab"), "it exists"
        assert "did you mean" not in shell.refused("leader", "show", "nothing like it")
        shell.write("eu/a", end=1)
        assert shell.json("log", "show", "eu/a")["leader"]["candidate"] == "first"
        assert shell.run("leader", "wait", "eu/a") == "first\n"
        assert shell.json("leader", "wait", "eu/a", "--not", "second")["candidate"] == "first"
        refused = shell.refused("leader", "wait", "eu/a", "--not", "first", "--timeout", "0.1")
        assert "nobody but first leads" in refused
    assert "nobody leads" in shell.refused("leader", "show", "eu/a")
    assert "nobody leads" in shell.refused("leader", "wait", "eu/a", "--timeout", "0.1")
    shell.refused("leader", "wait", "eu/a", "--timeout", "-1", code=2)


def test_waiting_for_a_leader_ends_when_there_is_one(shell: CliShell) -> None:
    shown: list[str] = []
    waiter = threading.Thread(target=lambda: shown.append(shell.run("leader", "wait", "soon")))
    waiter.start()
    with candidates_of(shell, "soon", "somebody"):
        waiter.join(30)
        assert shown == ["somebody\n"]


def test_elections_are_told_by_the_names_of_their_logs(shell: CliShell) -> None:
    async def names() -> list[str]:
        store = await open_store(shell.uri)
        try:
            return await contested_logs(store)
        finally:
            await store.close()

    with candidates_of(shell, "a b/c%", "x"):
        assert "a b/c%" in on_loop(names)


def test_the_election_of_auditors_is_listed_when_it_is_asked_for(shell: CliShell) -> None:
    with candidates_of(shell, ".auditor", "helper"), candidates_of(shell, "led", "somebody"):
        listed = shell.invoke("leader", "list")
        assert (".auditor" in listed.stdout, "somebody" in listed.stdout) == (False, True)
        assert "1 election within dlog not listed; --all lists all" in listed.stderr
        everything = shell.invoke("leader", "list", "--all")
        assert ".auditor" in everything.stdout
        assert everything.stderr == ""
        assert [each["log"] for each in shell.json("leader", "list", "--prefix", ".")] == [
            ".auditor"
        ]


def test_a_janitor_applies_retention_to_a_log_that_nobody_writes(shell: CliShell) -> None:
    shell.write("kept")
    shell.run("log", "settings", "set", "kept", "retention_age_s=1ms")
    done = shell.json("janitor", "run", "--once")
    assert done["records_trimmed"] == 30
    assert done["ledgers_deleted"] == 2, "the last one stays for what it tells of the end"
    assert (done["orphans"], done["troubles"]) == ([], [])
    assert shell.json("log", "show", "kept")["first_offset"] == 30
    assert "0 records trimmed" in shell.run("janitor", "run", "--once")


def test_a_janitor_that_makes_no_sense_is_a_usage_error(shell: CliShell) -> None:
    shell.refused("janitor", "run", "--interval-s", "0", code=2)
    shell.refused("janitor", "run", "--orphans-max", "-1", code=2)
    shell.refused("janitor", "run", "--no-such-option", code=2)


def test_a_janitor_that_ends_by_itself_says_why(
    shell: CliShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_: Janitor) -> None:
        raise HandleClosed("the ledger client")

    monkeypatch.setattr(Janitor, "run", run)
    assert "the ledger client" in shell.refused("janitor", "run")


def test_what_a_janitor_could_not_do_is_told_and_is_the_exit_code(shell: CliShell) -> None:
    async def damage() -> None:
        store = await open_store(shell.uri)
        await store.create("/logs/broken", b"no manifest")
        await store.close()

    async def remove() -> None:
        store = await open_store(shell.uri)
        await store.delete("/logs/broken")
        await store.close()

    on_loop(damage)
    try:
        result = shell.invoke("janitor", "run", "--once")
        assert result.exit_code == 1
        assert "dlog: broken:" in result.stderr
        found = json.loads(shell.run("janitor", "run", "--once", "--json", code=1))
        assert [each["what"] for each in found["troubles"]] == ["broken"]
        audited = shell.json("log", "audit", code=1)
        assert [each["what"] for each in audited["troubles"]] == ["broken"]
    finally:
        on_loop(remove)
