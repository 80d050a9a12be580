"""Namespaces are made on purpose, with their layout and, on ZooKeeper, for whom they are."""

import json
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE
from typer.testing import CliRunner

from bookie.config import BookieConfig
from bookie.process import run_bookie
from dlog.cli.app import app
from dlog.health.checks import examine
from dlog.initialising import initialise
from dlog.local.zookeeper import ManagedZooKeeper
from ledger.client import LedgerClient
from ledger.cluster import make_namespace
from ledger.errors import InvalidValue, MetadataDenied, NamespaceMismatch, NoNamespace
from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore import open_store
from ledger.metastore.acl import digest_id
from ledger.metastore.acl_survey import survey_acls
from ledger.metastore.memory import MemoryHub
from ledger.metastore.zookeeper import ZooKeeperStore
from ledger.quorum import Quorum
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
    assert survey.nodes == 9
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
    [sign] = [sign for sign in report.signs if sign.kind == "acl-differs"]
    assert "1 node of the namespace" in sign.what
    assert "/ledgers/999" in sign.what
    assert sign.is_wrong
    assert report.shown()["acls"]["examples"] == {"/ledgers/999": []}  # type: ignore[index]
    await store.close()


@pytest.mark.zookeeper
async def test_the_doctor_notes_that_a_namespace_is_open(zookeeper: ManagedZooKeeper) -> None:
    uri = fresh_uri(zookeeper)
    store = await zookeeper_store(uri)
    await make_namespace(store)
    report = await examine(store, deep=True)
    [sign] = [sign for sign in report.signs if sign.kind == "open-namespace"]
    assert not sign.is_wrong
    await store.close()
