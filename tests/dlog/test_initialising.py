"""Namespaces are made on purpose, with their layout and, on ZooKeeper, for whom they are."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE
from typer.testing import CliRunner

from bookie.config import BookieConfig
from bookie.process import run_bookie
from dlog.cli.app import app
from dlog.health.checks import examine
from dlog.local.zookeeper import ManagedZooKeeper
from dlog.namespace_init import initialise, protect
from ledger.client import LedgerClient
from ledger.cluster import make_namespace
from ledger.errors import InvalidValue, MetadataDenied, NamespaceMismatch, NoNamespace
from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore import open_store
from ledger.metastore.acl import NODES, AclRoles, digest_id
from ledger.metastore.acl_survey import survey_acls
from ledger.metastore.memory import MemoryHub
from ledger.metastore.port import CreateOp
from ledger.metastore.zookeeper import ZooKeeperStore
from ledger.quorum import Quorum
from ledger.security.access import Grant, Role, Rules
from ledger.security.documents import change_rules, read_rules
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, SESSION_S
from tests.zookeeper import fresh_uri

ME = "?auth=digest:me:secret"
ALSO = digest_id("also", "known")


async def zookeeper_store(uri: str) -> ZooKeeperStore:
    store = await open_store(uri, session_timeout_s=SESSION_S, timeout_s=PATIENCE_S)
    assert isinstance(store, ZooKeeperStore)
    return store


def dlog(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


async def test_a_bookie_makes_no_namespace(tmp_path: Path) -> None:
    with MemoryHub().shared("nothing-here"):
        config = BookieConfig(uri="memory://nothing-here", directory=tmp_path / "b")
        with pytest.raises(NoNamespace, match="dlog init 'memory://nothing-here'"):
            await run_bookie(config)
        with pytest.raises(NoNamespace):
            await LedgerClient.connect("memory://nothing-here")
    missing = (tmp_path / "mistyped").as_uri()
    with pytest.raises(NoNamespace):
        await run_bookie(BookieConfig(uri=missing, directory=tmp_path / "c"))
    assert not (tmp_path / "mistyped").exists()
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        ("flat", "/ledgers/L0000000000"),
        ("hierarchical", "/ledgers/00/0000/L0000"),
        ("longhierarchical", "/ledgers/000/0000/0000/0000/L0000"),
    ],
)
async def test_ledgers_lie_as_the_layout_says_that_was_chosen(layout: str, path: str) -> None:
    with MemoryHub().shared("laid-out"):
        made = await initialise("memory://laid-out", layout=layout)
        assert (made.made, made.layout) == (True, layout)
        client = await LedgerClient.connect("memory://laid-out", PATIENT)
        metadata = LedgerMetadata(
            quorum=Quorum(1, 1, 1),
            fragments=(Fragment(EntryId(0), (BookieId("b"),)),),
            creation_token=b"token",
        )
        await client.ledgers.create(metadata)
        assert await client.store.exists(path) == 0
        await client.close()


def test_the_command_makes_one_once_and_says_what_it_is(tmp_path: Path) -> None:
    uri = (tmp_path / "metadata").as_uri()
    made = json.loads(dlog("init", uri, "--layout", "hierarchical", "--json"))
    assert made["made"] is True
    assert (made["uri"], made["layout"], made["acl"]) == (uri, "hierarchical", [])
    for again in (["init", uri], ["init", uri, "--layout", "hierarchical"], ["--uri", uri, "init"]):
        assert json.loads(dlog(*again, "--json")) == {**made, "made": False}
    said = dlog("init", uri, "--layout", "flat", code=1)
    assert "namespace is of layout 'hierarchical', expected layout 'flat'" in said
    assert made["instance"] in dlog("init", uri)
    dlog("init", uri, "--layout", "cubic", code=2)
    assert "only ZooKeeper" in dlog("init", uri, "--acl", "x509:CN=dlog", code=1)


async def test_ids_of_a_store_without_any_are_refused() -> None:
    with pytest.raises(InvalidValue, match="only ZooKeeper"):
        await initialise("memory://m", ids=(ALSO,))


@pytest.mark.zookeeper
async def test_nothing_is_made_on_zookeeper_by_who_only_opens(zookeeper: ManagedZooKeeper) -> None:
    uri = fresh_uri(zookeeper)
    with pytest.raises(NoNamespace, match=f"dlog init '{uri}'"):
        await LedgerClient.connect(uri, PATIENT)
    above, _, root = uri.rpartition("/")
    store = await zookeeper_store(above)
    assert await store.exists(f"/{root}") is None
    await store.close()


@pytest.mark.zookeeper
async def test_all_nodes_are_for_whom_the_namespace_was_made(zookeeper: ManagedZooKeeper) -> None:
    """Those too that others make, with other credentials."""
    uri = fresh_uri(zookeeper)
    made = await initialise(uri + ME, ids=(ALSO,))
    wanted = tuple(sorted((digest_id("me", "secret"), ALSO)))
    assert (made.made, made.ids) == (True, wanted)
    client = await LedgerClient.connect(f"{uri}?auth=digest:also:known", PATIENT)
    await client.store.create("/logs/deep/log", b"x")
    await client.store.create("/elections/one", ephemeral=True)
    survey = await survey_acls(client.store)
    assert survey is not None
    assert (survey.ids, survey.differing, survey.whole) == (wanted, 0, True)
    assert survey.nodes == 10
    few = await survey_acls(client.store, nodes_max=3)
    assert few is not None
    assert (few.nodes, few.whole) == (3, False)
    for stranger in ("", "?auth=digest:me:guess"):
        with pytest.raises(MetadataDenied):
            await LedgerClient.connect(uri + stranger, PATIENT)
    await client.close()


@pytest.mark.zookeeper
async def test_one_that_is_for_others_is_not_taken_for_ones_own(
    zookeeper: ManagedZooKeeper,
) -> None:
    uri = fresh_uri(zookeeper)
    made = await initialise(uri)
    assert made.ids == ()
    with pytest.raises(NamespaceMismatch, match="namespace is for everybody, expected for digest"):
        await initialise(uri + ME)
    mine = fresh_uri(zookeeper)
    first = await initialise(mine + ME)
    assert (await initialise(mine + ME)).instance == first.instance
    with pytest.raises(NamespaceMismatch):
        await initialise(mine + ME, ids=(ALSO,))


@pytest.mark.zookeeper
async def test_the_doctor_names_nodes_that_others_may_touch(zookeeper: ManagedZooKeeper) -> None:
    uri = fresh_uri(zookeeper)
    await initialise(uri + ME)
    root = "/" + uri.rpartition("/")[2]
    kazoo = KazooClient(zookeeper.hosts, auth_data=[("digest", "me:secret")])
    kazoo.start()
    kazoo.create(f"{root}/ledgers/999", acl=OPEN_ACL_UNSAFE)
    kazoo.stop()
    kazoo.close()
    store = await zookeeper_store(uri + ME)
    report = await examine(store, deep=True)
    [finding] = [finding for finding in report.findings if finding.kind == "acl-differs"]
    assert "1 node of the namespace" in finding.what
    assert "/ledgers/999" in finding.what
    assert finding.is_wrong
    assert report.to_dict()["acls"]["examples"] == {"/ledgers/999": []}  # type: ignore[index]
    await store.close()


@pytest.mark.zookeeper
async def test_the_doctor_notes_that_a_namespace_is_open(zookeeper: ManagedZooKeeper) -> None:
    uri = fresh_uri(zookeeper)
    store = await zookeeper_store(uri)
    await make_namespace(store)
    report = await examine(store, deep=True)
    [finding] = [finding for finding in report.findings if finding.kind == "open-namespace"]
    assert not finding.is_wrong
    await store.close()


OF_HERE, ELSEWHERE = "ip:127.0.0.1", "ip:10.9.8.7"
ROLES = AclRoles(operators=(OF_HERE,), bookies=(ELSEWHERE,), clients=("ip:10.9.8.6",))


@pytest.mark.zookeeper
async def test_a_namespace_that_was_open_is_protected_with_all_that_is_in_it(
    zookeeper: ManagedZooKeeper,
) -> None:
    uri = fresh_uri(zookeeper)
    store = await zookeeper_store(uri)
    await make_namespace(store)
    await store.create("/cookies/bookie-0", b"x")
    await store.create("/logs/deep/log", b"x")
    await store.create("/bookies/available/bookie-0", ephemeral=True)
    report = await examine(store, deep=True)
    assert "open-namespace" in {finding.kind for finding in report.findings}
    assert await protect(store, ROLES) > len(NODES)
    survey = await survey_acls(store)
    assert survey is not None
    assert (survey.roles, survey.differing, survey.missing) == (ROLES, 0, ())
    assert await protect(store, ROLES) == 0
    assert await read_rules(store) == Rules()
    await store.close()
    later = await zookeeper_store(uri)  # what a session makes that finds the roles
    await later.create("/underreplicated/ledgers/ff/urL1", b"x")
    await later.multi([CreateOp("/logs/other", b"x")])
    survey = await survey_acls(later)
    assert survey is not None
    assert (survey.differing, survey.examples) == (0, ())
    await later.close()


@pytest.mark.zookeeper
async def test_roles_of_a_namespace_are_not_changed_by_making_it_again(
    zookeeper: ManagedZooKeeper,
) -> None:
    uri = fresh_uri(zookeeper)
    made = await initialise(uri, roles=ROLES)
    assert (made.made, made.roles) == (True, ROLES)
    assert not (await initialise(uri, roles=ROLES)).made
    with pytest.raises(NamespaceMismatch, match="dlog access protect"):
        await initialise(uri, roles=AclRoles(operators=(OF_HERE,), bookies=("ip:10.0.0.1",)))
    with pytest.raises(InvalidValue, match="give roles, or ids"):
        await initialise(uri, ids=(OF_HERE,), roles=ROLES)


@pytest.mark.zookeeper
async def test_an_operator_does_not_lock_himself_out(zookeeper: ManagedZooKeeper) -> None:
    uri = fresh_uri(zookeeper)
    await initialise(uri, ids=(OF_HERE,))
    store = await zookeeper_store(uri)
    others = AclRoles(operators=(ELSEWHERE,), clients=(OF_HERE,))
    with pytest.raises(InvalidValue, match="lock itself out"):
        await protect(store, others)
    survey = await survey_acls(store)
    assert survey is not None
    assert (survey.ids, survey.differing) == ((OF_HERE,), 0)
    await store.close()


@pytest.mark.zookeeper
async def test_the_doctor_says_that_all_who_write_are_operators(
    zookeeper: ManagedZooKeeper,
) -> None:
    uri = fresh_uri(zookeeper)
    await initialise(uri, ids=(OF_HERE, ELSEWHERE))
    store = await zookeeper_store(uri)
    for grants, is_wrong in ((0, False), (1, True)):
        if grants:
            grant = Grant("cn:a", Role.WRITER, "*")
            await change_rules(store, partial(Rules.granted, grant=grant), by="a test")
        report = await examine(store, deep=True)
        [finding] = [finding for finding in report.findings if finding.kind == "all-are-operators"]
        assert finding.is_wrong is is_wrong
        assert "dlog access protect" in finding.action
    await protect(store, ROLES)
    report = await examine(store, deep=True)
    assert {"all-are-operators", "acl-differs", "acl-missing"}.isdisjoint(
        finding.kind for finding in report.findings
    )
    await store.set_ids("/access", (OF_HERE, ELSEWHERE))
    await store.delete("/quotas")
    kinds = {
        finding.kind for finding in (await examine(store, deep=True)).findings if finding.is_wrong
    }
    assert {"acl-differs", "acl-missing"} <= kinds
    await store.close()


@pytest.mark.zookeeper
async def test_the_command_protects_a_namespace_and_mends_it(zookeeper: ManagedZooKeeper) -> None:
    uri = fresh_uri(zookeeper)
    await initialise(uri)
    words = ["access", "protect", "--uri", uri, "--json"]
    assert "beside operators" in await asyncio.to_thread(dlog, *words, code=1)
    named = ["--operator", OF_HERE, "--bookie", ELSEWHERE, "--client", "ip:10.9.8.6"]
    first = json.loads(await asyncio.to_thread(dlog, *words, *named))
    assert first["roles"]["operators"] == [OF_HERE]
    store = await zookeeper_store(uri)
    await store.set_ids("/access", ())
    again = json.loads(await asyncio.to_thread(dlog, *words))
    assert again == {"changed": 1, "roles": first["roles"]}
    assert await store.ids("/access") == ROLES.ids_at("/access")
    await store.close()
