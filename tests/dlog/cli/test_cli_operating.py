"""``dlog bookie status|gc|compact|readonly`` against bookies that run."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import dlog
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.worker import WORKERS
from dlog.cli.app import app
from dlog.cli.bookie.control import message_json
from dlog.cli.output import format_duration, format_size
from ledger import LedgerClient, Quorum
from ledger.ids import BookieId, LedgerId
from ledger.manager import LAYOUTS
from ledger.mark import MissingReplica, Reason
from ledger.metastore import open_store
from ledger.registry import COOKIES
from ledger.wire import bookie_pb2 as pb
from ledger.wire import metadata_pb2 as pb_metadata
from tests.bookie.processes import bookie
from tests.patience import PATIENT
from tests.waiting import wait_until

WORKER = pb_metadata.RepairWorkerNode(version=1, bytes_per_s=1 << 20, ledgers_per_s=0.5)

pytestmark = pytest.mark.integration


class Cluster:
    def __init__(self, uri: str) -> None:
        self.uri = uri

    def dlog(self, *arguments: str, code: int = 0) -> Result:
        runner = CliRunner(env={"DLOG_URI": self.uri, "COLUMNS": "200"})
        result = runner.invoke(app, ["bookie", *arguments], prog_name="dlog")
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    def json(self, *arguments: str, code: int = 0) -> list[Any]:
        output = self.dlog(*arguments, "--json", code=code).stdout
        return [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster")
    uri = f"file://{root}/metadata"
    first = bookie(uri, root / "b0", "--id=b0")
    second = bookie(uri, root / "b1", "--id=b1")
    with first as one, second as two:
        one.ready()
        two.ready()
        yield Cluster(uri)
        assert one.stop() == 0
        assert two.stop() == 0


COMMANDS = [["status"], ["gc"], ["compact"], ["readonly"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_of_each_command_teaches(command: list[str]) -> None:
    result = CliRunner().invoke(app, ["bookie", *command, "--help"], prog_name="dlog")
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"dlog bookie {command[0]}" in result.output
    for option in ("--uri", "--json"):
        assert option in result.output


@contextmanager
def a_ledger_that_b1_lacks(uri: str) -> Iterator[None]:
    async def lack(*, on: bool) -> None:
        store = await open_store(uri)
        marks = Marks(store)
        if on:
            await marks.add(
                LedgerId(7), [MissingReplica(BookieId("b1"), Reason.LOST, 1)], urgent=True
            )
            await store.create(f"{WORKERS}/x", WORKER.SerializeToString())
        else:
            assert await marks.lock(LedgerId(7))
            await marks.end(LedgerId(7), 0)
            await store.delete(f"{WORKERS}/x")
        await store.close()

    asyncio.run(lack(on=True))
    try:
        yield
    finally:
        asyncio.run(lack(on=False))


def test_the_overview_says_what_is_left_to_repair_and_when_it_will_be_done(
    cluster: Cluster,
) -> None:
    with a_ledger_that_b1_lacks(cluster.uri):
        said = "1 ledger lacks copies: 1.0 MiB/s are copied, 2.0 s left; see 'dlog"
        assert said in cluster.dlog("status").stdout
    assert "copies:" not in cluster.dlog("status").stdout


def test_the_status_of_a_bookie_says_what_is_left_to_repair_of_what_it_should_hold(
    cluster: Cluster,
) -> None:
    with a_ledger_that_b1_lacks(cluster.uri):
        own = (
            "repair: 1 ledger without what this bookie should hold, 1 of them urgent, 0 deferred\n"
        )
        of_all = "repair of the cluster: 1 ledger, 1.0 MiB/s are copied, 2.0 s left\n"
        assert own + of_all in cluster.dlog("status", "b1").stdout
        other = cluster.dlog("status", "b0").stdout
        assert own not in other
        assert of_all in other
        for name, lacking in (("b0", 0), ("b1", 1)):
            [found] = cluster.json("status", name)
            assert found["repair"] == {
                "ledgers": lacking,
                "urgent": lacking,
                "deferred": 0,
                "all_looked_at": True,
                "underreplicated": 1,
                "bytes_per_s": 1 << 20,
                "left_s": 2.0,
            }
    assert "repair" not in cluster.dlog("status", "b1").stdout


def test_the_status_of_all_and_of_one(cluster: Cluster) -> None:
    found = cluster.json("status")
    assert [each["bookie"] for each in found] == ["b0", "b1"]
    [one] = cluster.json("status", "b1")
    assert one["bookie"] == "b1"
    assert one["read_only"] is False
    assert one["directories"][0]["total_bytes"] > one["directories"][0]["free_bytes"] > 0
    assert [due["kind"] for due in one["collector"]["due"]]
    overview = cluster.dlog("status").stdout
    assert "b0" in overview
    assert "writable" in overview
    shown = cluster.dlog("status", "b0").stdout
    assert "main, journal 0 of 1, ledger 0 of 1" in shown
    assert "below live share" in shown


def test_the_doctor_hears_what_bookies_say_of_themselves(cluster: Cluster) -> None:
    runner = CliRunner(env={"DLOG_URI": cluster.uri})
    found = json.loads(runner.invoke(app, ["doctor", "--json"]).stdout)
    for each in found["servers"]["bookies"]:
        assert each["reached_by_clients"]
        assert each["reached_by_operators"]
        assert abs(each["clock_off_s"]) <= each["answered_s"] + 0.01, "it is one machine"
        assert 0 <= each["fullest_disk"] <= 1
        assert each["version"] == found["servers"]["version"]


def test_a_record_is_traced_to_the_memory_and_the_files_of_its_bookies(cluster: Cluster) -> None:
    settings = {"ensemble": 2, "write_quorum": 2, "ack_quorum": 2}
    with dlog.Log.open("orders", uri=cluster.uri, settings=settings) as log:
        log.append(b"x")
    runner = CliRunner(env={"DLOG_URI": cluster.uri, "COLUMNS": "200"})
    words = ["log", "trace", "orders", "--offset", "0"]
    found = json.loads(runner.invoke(app, [*words, "--json"]).stdout)
    text = runner.invoke(app, words).stdout
    for replica in found["replicas"]:
        assert replica["fault"] is None
        assert replica["ledger"] == "here"
        places = {copy["place"]: copy for copy in replica["copies"]}
        assert places.keys() <= {"memory", "journal", "entry log"}
        for copy in replica["copies"]:
            assert copy["damage"] == ""
            assert copy["bytes"] > 0
            if copy["place"] != "memory":
                assert Path(copy["path"]).is_file()
                assert copy["path"] in text


def test_readonly_keeps_entries_out_until_it_is_off_again(cluster: Cluster) -> None:
    async def create() -> None:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        try:
            writer = await client.create(Quorum(1, 1, 1))
            await writer.add(b"entry")
            assert {b for f in writer.metadata.fragments for b in f.bookies} == {"b1"}
            await writer.close()
        finally:
            await client.close()

    assert "bookie b0 is read-only:" in cluster.dlog("readonly", "on", "b0").stdout
    try:
        [one] = cluster.json("status", "b0")
        assert one["read_only"]
        assert one["reasons"]
        assert "read-only" in cluster.dlog("status").stdout
        assert "read-only: " in cluster.dlog("status", "b0").stdout
        asyncio.run(create())
    finally:
        [off] = cluster.json("readonly", "off", "b0")
    assert off == {"bookie": "b0", "read_only": False, "reasons": []}


def test_a_deleted_ledger_is_collected_at_once(cluster: Cluster) -> None:
    async def create_and_delete() -> None:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        try:
            writer = await client.create(Quorum(2, 2, 2))
            await writer.add(b"entry")
            await writer.close()
            await client.delete(writer.ledger_id)
        finally:
            await client.close()

    asyncio.run(create_and_delete())
    found = cluster.json("gc", "b0", "b1")
    assert [run["bookie"] for run in found] == ["b0", "b1"]
    assert [(run["kind"], run["ledgers"], run["failure"]) for run in found] == [("gc", 1, "")] * 2
    assert "gc took" in cluster.dlog("gc", "b0").stdout
    assert "gc" in cluster.dlog("status", "b0").stdout


def test_ledgers_that_vanished_wait_for_an_operator_and_are_shown(cluster: Cluster) -> None:
    async def create_and_lose() -> None:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        try:
            for _ in range(3):
                writer = await client.create(Quorum(2, 2, 2))
                await writer.add(b"entry")
                await writer.close()
                layout = LAYOUTS["longhierarchical"]
                await client.store.delete(layout.path(writer.ledger_id))
        finally:
            await client.close()

    asyncio.run(create_and_lose())
    kept = cluster.dlog("gc", "b0", code=1)
    assert "ALARM: untraced-deletions: " in kept.stdout
    assert "'dlog bookie gc --allow-deletions 2'" in kept.stdout
    [shown] = cluster.json("status", "b0")
    collector = shown["collector"]
    assert isinstance(collector, dict)
    assert collector["waiting"] == 2
    assert "ALARM: untraced-deletions (2 ledgers waiting)" in cluster.dlog("status").stdout
    assert "ALARM: untraced-deletions: " in cluster.dlog("status", "b0").stdout
    assert "neither a number" in cluster.dlog("gc", "b0", "--allow-deletions", "x", code=2).stderr
    [run] = cluster.json("gc", "b0", "--allow-deletions", "1", code=1)
    assert (run["ledgers"], run["waiting"]) == (1, 1)
    [run] = cluster.json("gc", "b0", "--allow-deletions", "all")
    assert (run["ledgers"], run["waiting"], run["alarms"]) == (1, 0, [])
    assert "ALARM" not in cluster.dlog("status", "b0").stdout


def test_compaction_is_run_at_once(cluster: Cluster) -> None:
    [run] = cluster.json("compact", "b0")
    assert (run["kind"], run["failure"]) == ("minor", "")
    [run] = cluster.json("compact", "b0", "--major")
    assert (run["kind"], run["failure"]) == ("major", "")
    assert "bookie b0: minor took" in cluster.dlog("compact", "b0").stdout


def test_a_bookie_that_nobody_knows_is_one_sentence(cluster: Cluster) -> None:
    for words in (["status"], ["gc"], ["compact"], ["readonly", "on"]):
        result = cluster.dlog(*words, "b9", code=1)
        assert result.stderr == "dlog: no bookie 'b9' is known; see 'dlog bookie list'\n"


def test_a_bookie_that_does_not_answer_is_told_and_the_others_are_shown(
    cluster: Cluster, tmp_path: Path
) -> None:
    with bookie(cluster.uri, tmp_path / "b2", "--id=b2") as third:
        third.ready()
        third.kill()
    result = cluster.dlog("status", "b0", "b2", "--json", code=1)
    assert [json.loads(line)["bookie"] for line in result.stdout.splitlines()] == ["b0"]
    assert "bookie b2" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    try:
        wait_until(lambda: missed(cluster, "b2"), "its session has ended")
        told = cluster.dlog("status", code=1)
        assert "dlog: bookie b2 (last at 127.0.0.1:" in told.stderr
        assert "is known and not registered" in told.stderr
        assert "b1" in told.stdout
    finally:
        asyncio.run(forget(cluster.uri, "b2"))
    assert cluster.dlog("status").stderr == ""


def missed(cluster: Cluster, name: str) -> bool:
    runner = CliRunner(env={"DLOG_URI": cluster.uri})
    found = json.loads(runner.invoke(app, ["status", "--json"]).stdout)
    [state] = [each["state"] for each in found["bookies"]["bookies"] if each["bookie"] == name]
    return str(state) == "away"


async def forget(uri: str, bookie: str) -> None:
    store = await open_store(uri)
    await store.delete(f"{COOKIES}/{bookie}")
    await store.close()


def test_nothing_of_a_message_is_left_out_in_json() -> None:
    reply = pb.StatusReply(journals=[pb.JournalStatus(path="p", bytes=2**40)])
    facts = message_json(reply)
    assert list(facts) == [field.name for field in pb.StatusReply.DESCRIPTOR.fields]
    assert facts["reasons"] == []
    [journal] = json.loads(json.dumps(facts))["journals"]
    assert journal["bytes"] == 2**40


def test_sizes_and_times_are_shown_for_people() -> None:
    assert [format_size(n) for n in (0, 1023, 1536, 3 << 30)] == [
        "0 B", "1023 B", "1.5 KiB", "3.0 GiB",
    ]  # fmt: skip
    assert [format_duration(n) for n in (0.25, 119, 121, 7200, 200_000)] == [
        "0.2 s", "119.0 s", "2 min", "2 h", "2 d",
    ]  # fmt: skip
