"""``dlog status|doctor``: what is wrong with a cluster, first of all."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import dlog
from bookie.autorecovery.marks import Marks
from dlog.aio import Log
from dlog.aio.store import ManifestNode
from dlog.health import checks, survey
from dlog.health.checks import CHECKS
from dlog.sync.loop_thread import LoopThread
from ledger.client import LedgerClient
from ledger.entry import encode_lac
from ledger.environment import repair_credentials
from ledger.errors import ConfirmedEntryMissing
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.mark import MissingReplica, Reason, written_without
from ledger.metastore import open_store
from ledger.metastore.memory import MemoryHub
from ledger.metastore.port import MetadataStore
from ledger.registry import AVAILABLE, COOKIES, BookieRegistration, register
from ledger.repair_marks import mark_ledger
from ledger.requests import AddRun, Status
from ledger.wire import metadata_pb2 as pb
from tests.dlog.cli.cli_shell import CliShell, cli_shell
from tests.patience import PATIENT, patient_campaign


@pytest.fixture
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


def kinds(shell: CliShell, *, code: int = 1) -> list[str]:
    """Return the kinds of what is wrong; notes are left out."""
    findings = shell.json("status", code=code)["findings"]
    return [finding["kind"] for finding in findings if finding["severity"] != "note"]


def test_a_cluster_that_is_well_says_so(shell: CliShell) -> None:
    shell.write("orders")
    assert shell.run("status").startswith("No problems found in what was checked.\n")
    found = shell.json("status")
    assert found["healthy"] is True
    assert [each["state"] for each in found["bookies"]["bookies"]] == ["writable"] * 3
    assert found["not_looked_at"] == []
    assert found.keys() >= {check.name for check in CHECKS if not check.deep}


def test_a_log_that_cannot_be_opened_is_named(shell: CliShell) -> None:
    with dlog.Log.open("orders", uri=shell.uri) as log:
        log.append(b"x")
        assert shell.json("status")["openings"]["open"] == 1
        shell.cluster.kill_bookie(0)
        assert "log-cannot-be-opened" not in kinds(shell)
        shell.cluster.kill_bookie(1)
        findings = shell.json("status", code=1)["findings"]
        (dead,) = (each for each in findings if each["severity"] == "critical")
        below = dead["consequences"]
        (finding,) = (each for each in below if each["kind"] == "log-cannot-be-opened")
        assert "log orders cannot be opened for writing: of ledger" in finding["what"]
        with suppress(dlog.LogError):
            log.close(timeout_s=0)


async def abandoned_with_a_false_lac(uri: str, lac: int) -> LedgerId:
    """Write a log, and leave it; let its bookies believe that the entry *lac* is confirmed, as
    whoever had a bookie's certificate could before a LAC took the right to add."""
    client = await LedgerClient.connect(uri, PATIENT)
    try:
        log = await Log.open("orders", client=client)
        await log.append_many([b"x"] * 10)
        (ledger_id,) = log.writer.own_ledgers
        await log.writer.abandon()
        metadata = await client.describe(ledger_id)
        key = repair_credentials(ledger_id, metadata).key
        frame = encode_lac(ledger_id=ledger_id, last_add_confirmed=lac, length=9)
        run = AddRun(ledger_id, key, [-1], [len(frame)], frame, explicit_lac=True)
        for bookie in metadata.last_fragment.bookies:  # whichever recovery asks
            done: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
            client.environment.transport.add(bookie, run, done.set_result)
            assert await done is Status.OK
        return ledger_id
    finally:
        await client.close()


def test_a_ledger_with_a_lac_that_cannot_be_true_is_named_and_mended(shell: CliShell) -> None:
    ledger_id = asyncio.run(abandoned_with_a_false_lac(shell.uri, 10**6))
    with pytest.raises(
        ConfirmedEntryMissing, match="entry 1000000 is confirmed according to bookie"
    ):
        dlog.Log.open("orders", uri=shell.uri)
    findings = shell.json("status", code=1)["findings"]
    (finding,) = (each for each in findings if each["kind"] == "log-cannot-be-opened")
    assert "entry 1000000 is claimed to be confirmed" in finding["what"]
    told = shell.refused("ledger", "close-at", str(ledger_id), "0", "--yes")
    assert "--below-confirmed" in told
    shell.run("ledger", "close-at", str(ledger_id), "0", "--yes", "--below-confirmed")
    with dlog.Log.open("orders", uri=shell.uri) as log:
        assert log.append(b"y").offset == 10
        assert "log-cannot-be-opened" not in kinds(shell)
    assert shell.json("log", "count", "orders")["records"] == 11


def test_a_bookie_that_died_is_missed_and_so_are_its_copies(shell: CliShell) -> None:
    shell.write("orders")
    shell.cluster.kill_bookie(1)
    text = shell.run("status", code=1)
    assert text.startswith("1 problem found.\n\nWARNING: bookie bookie-1 (last at 127.0.0.1:")
    assert "\n  - 2 bookies are writable, and by default each segment of a log needs 3\n" in text
    assert "\n    -> Segments start with fewer copies" in text
    found = shell.json("status", code=1)
    assert found["healthy"] is False
    assert found["bookies"]["bookies"][1]["state"] == "away"
    assert found["repair"]["with_copies_away"] == found["repair"]["sampled"] == 3
    [finding] = found["findings"]
    assert (finding["kind"], finding["severity"]) == ("bookie-away", "warning")
    below = [each["kind"] for each in finding["consequences"]]
    assert below == ["few-bookies", "copies-away", "no-auditor"]
    shell.cluster.kill_bookie(2)
    [finding] = shell.json("status", code=1)["findings"]
    assert (finding["kind"], finding["severity"]) == ("bookie-away", "critical")
    below = [each["kind"] for each in finding["consequences"]]
    assert below[:2] == ["nothing-written", "copies-short"]


def test_a_bookie_that_is_read_only_is_asked_why(shell: CliShell) -> None:
    shell.cluster.set_read_only(0)
    assert kinds(shell) == ["bookie-read-only", "few-bookies"]
    assert "the reason is unknown (it accepts no operator" in shell.run("status", code=1)


def test_what_a_bookie_left_in_the_store_and_cannot_be_read_is_told(shell: CliShell) -> None:
    async def spoil() -> None:
        store = await open_store(shell.uri)
        await store.set(f"{AVAILABLE}/bookie-0", b"\xff")
        retired = pb.CookieNode(version=2, bookie="old", retired_ms=1)
        await store.create(f"{COOKIES}/old", retired.SerializeToString())
        await store.create(f"{COOKIES}/odd", b"\xff")
        await store.close()

    asyncio.run(spoil())
    found = shell.json("status", code=1)
    states = {each["bookie"]: each["state"] for each in found["bookies"]["bookies"]}
    assert states["old"] == "retired"
    assert states["odd"] == "away"
    assert kinds(shell).count("bookie-unreadable") == 2


def test_marked_ledgers_are_counted_and_a_few_of_them_read(
    shell: CliShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "MARKS_MAX", 3)

    async def mark() -> None:
        store = await open_store(shell.uri)
        marks = Marks(store)
        for number in range(5):
            await marks.add(LedgerId(number), [MissingReplica(BookieId("b"), Reason.LOST, 1)])
        found = await marks.read(LedgerId(0))
        assert found is not None
        lost = found[0].deferred("nobody has it", now_ms=0, lost=((1, 2),))
        assert await marks.lock(LedgerId(0))
        assert await marks.write(LedgerId(0), lost, found[1])
        await marks.unlock(LedgerId(0))
        await store.close()

    asyncio.run(mark())
    assert kinds(shell) == ["entries-lost", "underreplicated", "no-auditor"]
    found = shell.json("status", code=1)
    assert (found["repair"]["underreplicated"], found["repair"]["looked_at"]) == (5, 3)
    assert found["not_looked_at"] == ["what is lacking of 2 more marked ledgers"]
    assert (
        "5 ledgers are known to be underreplicated; the repair of 1 was postponed: nobody has it"
        in (" ".join(shell.run("status", code=1).split()))
    )
    assert "Not checked, because there is too much" in shell.run("status", code=1)


def test_a_log_that_was_left_by_its_leader_is_named_and_one_that_was_closed_is_not(
    shell: CliShell,
) -> None:
    async def lead(log: str, *, close: bool) -> None:
        store = await open_store(shell.uri)
        term = await patient_campaign(store, log, candidate="first")
        writer = await Log.open(log, uri=shell.uri, term=term)
        await writer.append(b"x")
        await (writer.close() if close else writer.abandon())
        await term.resign()
        await store.close()

    shell.write("without-election")
    for log, close in (("closed", True), ("left", False)):
        LoopThread.get().run(lead(log, close=close))
    assert kinds(shell) == ["log-without-leader"]
    assert shell.json("status", code=1)["logs"]["without_leader"] == ["left"]
    shell.run("log", "seal", "left", "--yes")
    # That recovered its ledger, which may be marked for it: some bookie may lack an entry.
    found = json.loads(shell.invoke("status", "--json").stdout)
    assert found["logs"]["without_leader"] == []


def test_a_store_that_does_not_answer_is_the_one_thing_that_is_wrong(shell: CliShell) -> None:
    with shell.cluster.metadata_cut():
        [finding] = shell.json("status", code=1)["findings"]
        assert finding["kind"] == "store-unreachable"
        assert shell.run("status", code=1).startswith("1 problem found.\n\nCRITICAL: the metadata")


def test_a_check_that_cannot_be_made_takes_no_other_with_it(shell: CliShell) -> None:
    async def spoil() -> None:
        store = await open_store(shell.uri)
        await store.create("/underreplicated/bookiecheckctime", b"\xff")
        await store.close()

    asyncio.run(spoil())
    found = shell.json("status", code=1)
    assert found["repair"] is None
    assert found["logs"]["logs"] == 0
    assert kinds(shell) == ["repair-unknown"]


def test_looking_makes_no_namespace(shell: CliShell) -> None:
    with MemoryHub().shared("empty-one"):
        [finding] = shell.json("status", "--uri", "memory://empty-one", code=1)["findings"]
        assert finding["kind"] == "no-namespace"

        async def nodes() -> Any:
            store = await open_store("memory://empty-one")
            try:
                return await store.children("/")
            finally:
                await store.close()

        assert asyncio.run(nodes()) == []


def test_a_directory_that_is_none_is_one_sentence(shell: CliShell) -> None:
    assert "there is no namespace at" in shell.refused("status", "--uri", "file:///none/such")


def test_the_doctor_asks_each_bookie_and_reads_each_log(shell: CliShell) -> None:
    shell.write("orders")
    shell.run("log", "settings", "set", "orders", "retention_age_s=7d")
    text = shell.run("doctor")
    assert "3 of 3 reached by clients, 0 by operators" in text
    found = shell.json("doctor")
    assert found.keys() >= {check.name for check in CHECKS}
    assert found["deletions"]["with_retention"] == 1
    notes = [finding["kind"] for finding in found["findings"]]
    assert notes == ["no-auditor", "no-orders", "no-orders", "no-orders", "no-janitor"]


def test_the_doctor_finds_one_that_is_registered_and_does_not_answer(shell: CliShell) -> None:
    async def register_nobody() -> MetadataStore:
        store = await open_store(shell.uri)
        cookie = pb.CookieNode(version=2, bookie="ghost")
        await store.create(f"{COOKIES}/ghost", cookie.SerializeToString())
        # Nobody listens on port 1 of this machine.
        await register(store, BookieRegistration("ghost", "127.0.0.1:1", "gone"))
        return store

    loop = LoopThread.get()
    store = loop.run(register_nobody())
    try:
        finding = shell.json("doctor", code=1)["findings"][0]
        assert finding["kind"] == "bookie-unreachable"
        assert "bookie ghost is registered, but does not answer clients" in finding["what"]
    finally:
        loop.run(store.close())


def test_the_doctor_sees_deletions_that_nobody_finishes(
    shell: CliShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MANIFESTS_MAX", 2)
    for log in ("a", "b", "c"):
        shell.write(log, end=1)

    async def begin() -> None:
        store = await open_store(shell.uri)
        node = ManifestNode(store, "a")
        manifest, version = await node.read()
        await node.write(manifest.dropping(), version)
        node = ManifestNode(store, "b")
        manifest, version = await node.read()
        await node.write(replace(manifest, deleting=(LedgerId(10**6),)), version)
        await store.close()

    asyncio.run(begin())
    found = shell.json("doctor", code=1)
    assert found["deletions"]["half_deleted"] == ["a"]
    assert found["deletions"]["waiting"] == {"b": 1}
    assert found["not_looked_at"] == ["the manifests of 1 more log"]
    wrong = [finding["kind"] for finding in found["findings"] if finding["severity"] == "warning"]
    assert wrong == ["logs-half-deleted", "ledgers-wait"]
    shell.run("janitor", "run", "--once")
    assert shell.json("doctor")["deletions"]["half_deleted"] == []


def test_a_bookie_is_ready_when_it_is_registered(shell: CliShell) -> None:
    assert shell.run("bookie", "ready", "bookie-1") == ""
    assert shell.json("bookie", "ready", "--replicated")["ready"] is True
    shell.cluster.kill_bookie(1)
    assert "not registered: bookie-1" in shell.refused("bookie", "ready", "bookie-1")
    assert shell.run("bookie", "ready", "bookie-0") == ""
    found = shell.json("bookie", "ready", "--wait", "0", code=1)
    assert found == {"ready": False, "missing": ["bookie-1"], "ledgers_lack": False}


def test_no_bookie_more_may_be_stopped_while_a_ledger_lacks_copies(shell: CliShell) -> None:
    shell.write("orders")

    async def mark() -> None:
        store = await open_store(shell.uri)
        await mark_ledger(store, LedgerId(0), written_without([BookieId("b")], EntryId(0), 1))
        await store.close()

    asyncio.run(mark())
    assert shell.run("bookie", "ready") == ""
    assert "ledgers lack copies" in shell.refused("bookie", "ready", "--replicated")
