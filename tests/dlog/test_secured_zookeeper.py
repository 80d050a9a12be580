"""A cluster with TLS and roles on a ZooKeeper with TLS and ACLs, all of it real processes.

What each role is refused, by the bookie and by ZooKeeper.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from dlog.aio import Log
from dlog.aio.admin import delete_log, log_info, rename_log, truncate_log
from dlog.local.cluster import LocalCertificates, LocalCluster
from dlog.local.errors import JavaMissing, ZooKeeperMissing
from dlog.local.zookeeper import ManagedZooKeeper
from dlog.namespace_init import shown_roles
from dlog.tls import files
from dlog.tls.authority import CertificateRequest
from ledger.client import LedgerClient
from ledger.cluster import open_namespace
from ledger.errors import (
    AccessDenied,
    CertificateUnusable,
    MetadataDenied,
    MetadataUnavailable,
    NodeExists,
)
from ledger.ids import BookieId, LedgerId
from ledger.ledger_owner import LedgerOwner, owner_path, owner_value, renamed_value
from ledger.manager import LAYOUTS, LedgerStore
from ledger.metastore import open_store
from ledger.metastore.acl_survey import survey_acls
from ledger.metastore.port import MetadataStore
from ledger.options import variables_of
from ledger.registry import BookieRegistration
from ledger.requests import Status
from ledger.security.access import Grant, Role, Rules
from ledger.security.certificates import Security
from ledger.security.documents import change_rules
from ledger.security.settings import OFF, TlsSettings
from ledger.transport.operator import BookieOperator
from ledger.transport.sockets import SocketTransport
from tests.bookie.server.operations import (
    COPIES,
    OPERATIONS,
    READS,
    REPAIRS,
    WRITES,
    closed,
    do,
    entry,
    locked,
    made,
    stamp,
)
from tests.certificates import certificate, put
from tests.ledger.serving import add
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, SESSION_S, TEST_S, eventually

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper]

LOG: Final = "team/flights"
ROLES: Final[dict[str, tuple[Grant | None, Set[str]]]] = {
    # by the name of the certificate: what is granted, and what may so be done with a ledger of LOG
    "stranger": (None, set()),
    "other": (Grant("cn:other", Role.WRITER, "team/flights2"), set()),
    "reader": (Grant("cn:reader", Role.READER, LOG), READS),
    "writer": (Grant("cn:writer", Role.WRITER, "team/*"), WRITES),
    "repair": (Grant("cn:repair", Role.BOOKIE, "*"), REPAIRS),
    "operator": (Grant("cn:operator", Role.OPERATOR, "*"), REPAIRS),
}
IN_ZOOKEEPER: Final = {
    "operators": ["x509:CN=client"],
    "bookies": ["x509:CN=bookie-0", "x509:CN=bookie-9"],
    "clients": ["x509:CN=other", "x509:CN=writer"],
    "readers": ["x509:CN=reader"],
}
"""`client` keeps the namespace; ZooKeeper does not know `stranger`, `repair` and `operator`."""
ORDERS: Final[dict[str, Callable[[BookieOperator], Awaitable[object]]]] = {
    "status": lambda operator: operator.status(),
    "collect": lambda operator: operator.collect(),
    "compact": lambda operator: operator.compact(major=False),
    "set_read_only": lambda operator: operator.set_read_only(read_only=False),
    "trace": lambda operator: operator.trace(1, 0),
}


@dataclass(frozen=True, slots=True)
class Scene:
    uri: str
    store: MetadataStore
    """With the certificate that made the namespace."""
    ledgers: LedgerStore
    bookie: BookieId
    """The one that there is; its name has an end that no other cluster's has."""
    tls: dict[str, TlsSettings]

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[LedgerClient]:
        client = await LedgerClient.connect(self.uri, replace(PATIENT, tls=self.tls[name]))
        try:
            await client.bookies.wait_for(1, PATIENCE_S)
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def secured(directory: Path) -> AsyncIterator[Scene]:
    """A ZooKeeper that takes TLS only, a namespace for certificates alone, and a bookie."""
    certificates = LocalCertificates(directory / "cluster" / "tls")
    tls = {"client": certificates.of_client()}
    for name in (*ROLES, "bookie-9"):
        tls[name] = issued(directory / "cluster" / "tls", name, tls["client"])
    async with AsyncExitStack() as stack:
        server = ManagedZooKeeper(directory / "zookeeper", tls=certificates.of_zookeeper())
        await stack.enter_async_context(server)
        uri = server.uri("/secured")
        roles = [f"--{role[:-1]}={each}" for role, ids in IN_ZOOKEEPER.items() for each in ids]
        made = json.loads(await dlog(tls["client"], "init", uri, *roles, "--json"))
        assert made["roles"] == IN_ZOOKEEPER
        cluster = LocalCluster(directory / "cluster", bookies=1, zookeeper=uri, tls=True)
        await stack.enter_async_context(cluster)
        store = await open_store(
            uri, tls=tls["client"], session_timeout_s=SESSION_S, timeout_s=PATIENCE_S
        )
        stack.push_async_callback(store.close)
        for grant in (grant for grant, _ in ROLES.values() if grant is not None):
            await change_rules(store, partial(Rules.granted, grant=grant), by="a test")
        ledgers = LedgerStore(store, (await open_namespace(store)).layout)
        yield Scene(uri, store, ledgers, BookieId(cluster.bookies()[0].name), tls)


def issued(authority: Path, name: str, client: TlsSettings) -> TlsSettings:
    """Return how *name* secures its connections. It is no host, so its identity is that name."""
    pair = files.issue_to(authority, name, CertificateRequest(name=name, days=1.0))
    return replace(client, cert=str(pair.cert), key=str(pair.key))


async def dlog(tls: TlsSettings, *words: str, uri: str = "", fails: bool = False) -> str:
    """Run ``dlog`` as a user does; return what it printed, or why it failed."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "dlog.cli", *words],
        env={**os.environ, **variables_of(tls), "DLOG_URI": uri, "DLOG_TIMEOUT_S": "30"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_S,
    )
    assert (done.returncode != 0) is fails, done.stderr
    printed: str = done.stderr if fails else done.stdout
    return printed


async def test_each_role_is_refused_what_is_not_its_own_by_bookie_and_by_zookeeper(
    tmp_path: Path,
) -> None:
    try:
        async with secured(tmp_path) as scene:
            async with scene.client("client") as client:
                (found,) = client.bookies.available()
                await bookies_go_by_the_grants(scene, found)
                for name, (_, allowed) in ROLES.items():
                    await may(scene, found, name, allowed)
                    await may_order(scene, found, name)
            await strangers_get_nothing_of_zookeeper(scene, tmp_path)
            await logs_are_written_and_read(scene)
            await who_may_only_read_changes_nothing(scene)
            await nobody_takes_the_ledger_of_another_log(scene, found)
            for name in ("reader", "other", "writer", "bookie-9"):
                await nobody_decides_who_may_do_what(scene, name)
            await every_node_is_for_the_certificates(scene)
    except (JavaMissing, ZooKeeperMissing) as error:
        pytest.skip(str(error))


def transport_as(scene: Scene, found: BookieRegistration, name: str) -> SocketTransport:
    return SocketTransport(
        lambda _: found.address,
        timeout_s=PATIENCE_S,
        security=Security(scene.tls[name]),
        meant=lambda _: found.meant,
    )


async def bookies_go_by_the_grants(scene: Scene, found: BookieRegistration) -> None:
    """The last grant is the operator's."""
    ledger_id = await made(scene.ledgers, scene.bookie, LOG)
    transport = transport_as(scene, found, "operator")

    async def known() -> bool:
        return await do("held", transport, scene.bookie, ledger_id) is not Status.ACCESS_DENIED

    await eventually(known, "the bookie has heard of all grants")
    await transport.close()


async def may(scene: Scene, found: BookieRegistration, name: str, allowed: Set[str]) -> None:
    """Each operation is tried on a ledger of its own; what is refused leaves it as it was."""
    transport = transport_as(scene, found, name)
    writer = transport_as(scene, found, "writer")
    try:
        for operation in OPERATIONS:
            ledger_id = await made(scene.ledgers, scene.bookie, LOG)
            assert await add(writer, entry(ledger_id), bookie=scene.bookie) is Status.OK
            if operation == COPIES:
                await closed(scene.ledgers, ledger_id, 1)
                await locked(scene.ledgers, ledger_id, f"cn:{name}", targets=(scene.bookie,))
            status = await do(operation, transport, scene.bookie, ledger_id)
            expected = Status.OK if operation in allowed else Status.ACCESS_DENIED
            assert status is expected, f"{name}: {operation}"
            if operation not in allowed:
                assert await add(writer, entry(ledger_id, 1), bookie=scene.bookie) is Status.OK
    finally:
        await transport.close()
        await writer.close()


async def may_order(scene: Scene, found: BookieRegistration, name: str) -> None:
    operator = BookieOperator(
        found.operator_address,
        bookie=scene.bookie,
        meant=found.meant,
        timeout_s=PATIENCE_S,
        security=Security(scene.tls[name]),
        takes=found.takes,
    )
    async with operator:
        for order, asked in ORDERS.items():
            if name == "operator":
                await asked(operator)
                continue
            told = f"dlog access grant cn:{name} operator"
            with pytest.raises(AccessDenied, match=told):
                await shown_as(asked(operator), f"{name}: {order}")


async def shown_as(asked: Awaitable[object], what: str) -> None:
    await asked
    pytest.fail(f"{what} was taken")


async def strangers_get_nothing_of_zookeeper(scene: Scene, directory: Path) -> None:
    """Who has a certificate, and is not in the ACL, may do nothing; who has none is not heard."""
    nodes = ["/secured", *(f"/secured/{name}" for name in await scene.store.children("/"))]
    assert {"/secured/access", "/secured/ledgers", "/secured/instance"} <= set(nodes)
    for name in ("stranger", "operator"):
        kazoo = await connected(scene, name)
        try:
            for node in nodes:
                for call, more in (
                    (kazoo.get, ()),
                    (kazoo.get_children, ()),
                    (kazoo.set, (b"mine",)),
                    (kazoo.set_acls, (OPEN_ACL_UNSAFE,)),
                ):
                    with pytest.raises(NoAuthError):
                        await asyncio.to_thread(call, node, *more)
                with pytest.raises(NoAuthError):
                    await asyncio.to_thread(kazoo.create, f"{node}/mine", b"")
                with pytest.raises(NoAuthError):
                    await asyncio.to_thread(kazoo.delete, f"{nodes[0]}/instance")
        finally:
            await asyncio.to_thread(kazoo.stop)
            await asyncio.to_thread(kazoo.close)
        with pytest.raises(MetadataDenied):
            await LedgerClient.connect(scene.uri, replace(PATIENT, tls=scene.tls[name]))
    believed_by_others = put(directory / "others", certificate("client", by="others"))
    without_certificate = f"{scene.uri}?ca={scene.tls['client'].ca}"
    for uri, tls in (
        (scene.uri, OFF),
        (without_certificate, OFF),
        (scene.uri, replace(believed_by_others, ca=scene.tls["client"].ca)),
    ):
        with pytest.raises((MetadataUnavailable, CertificateUnusable)):
            await open_store(uri, timeout_s=1.0, tls=tls)


async def logs_are_written_and_read(scene: Scene) -> None:
    one = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
    async with scene.client("writer") as writer, scene.client("reader") as reader:
        async with await Log.open(LOG, client=writer, settings=one) as log:
            assert (await log.append(b"in")).offset == 0
            with pytest.raises(MetadataDenied):
                await Log.open(LOG, client=reader)
            assert (await log.append(b"still in")).offset == 1
        async with await Log.tail(LOG, client=reader, follow=False) as tail:
            assert [record.value async for record in tail] == [b"in", b"still in"]
        with pytest.raises(MetadataDenied, match=r"/renamed.*with an operator's certificate"):
            await rename_log(LOG, "team/elsewhere", client=writer)
        assert (await log_info(LOG, client=writer)).name == LOG


async def who_may_only_read_changes_nothing(scene: Scene) -> None:
    """Neither does he open a log for writing that nobody has open, nor grant himself a role."""
    grant = Grant("cn:reader", Role.OPERATOR, "*")
    async with scene.client("client") as client, scene.client("reader") as reader:
        before = await log_info(LOG, client=client)
        for change in (
            Log.open(LOG, client=reader),
            delete_log(LOG, client=reader),
            truncate_log(LOG, before=1, client=reader),
            change_rules(reader.store, partial(Rules.granted, grant=grant), by="a reader"),
        ):
            with pytest.raises(MetadataDenied):
                await change
        assert (await log_info(LOG, client=client)).manifest == before.manifest


async def connected(scene: Scene, name: str) -> KazooClient:
    """Return a session that is none of dlog's: it may say what it likes."""
    kazoo = KazooClient(
        hosts=scene.uri.removeprefix("zk://").partition("/")[0],
        use_ssl=True,
        ca=scene.tls[name].ca,
        certfile=scene.tls[name].cert,
        keyfile=scene.tls[name].key,
    )
    await asyncio.to_thread(kazoo.start, PATIENCE_S)
    return kazoo


async def nobody_decides_who_may_do_what(scene: Scene, name: str) -> None:
    """But operators: neither by what says so, nor under the name of a bookie, nor by removing the
    node and making another one."""
    decisive = ["access", "quotas", "renamed", "instance", "layout", f"cookies/{scene.bookie}"]
    decisive += ["bookies", "bookies/decommissioning", "cookies", "logs", "leaders", "ledgers"]
    writable = {"logs", "leaders", "ledgers"}
    kazoo = await connected(scene, name)
    try:
        for node in (f"/secured/{each}" for each in decisive):
            assert await asyncio.to_thread(kazoo.get, node)
            calls = [(kazoo.delete, (node,)), (kazoo.set_acls, (node, OPEN_ACL_UNSAFE))]
            if node.removeprefix("/secured/") not in writable:
                calls.append((kazoo.set, (node, b"mine")))
            if node != "/secured/cookies" and node.removeprefix("/secured/") not in writable:
                calls.append((kazoo.create, (f"{node}/mine",)))
            for call, arguments in calls:
                with pytest.raises(NoAuthError):
                    await asyncio.to_thread(call, *arguments)
        with pytest.raises(NoAuthError):
            await asyncio.to_thread(kazoo.create, "/secured/mine")
        if name != "bookie-9":
            for node in (
                "cookies/mine",
                "bookies/available/mine",
                f"bookies/readonly/{scene.bookie}",
            ):
                with pytest.raises(NoAuthError):
                    await asyncio.to_thread(kazoo.create, f"/secured/{node}")
    finally:
        await asyncio.to_thread(kazoo.stop)
        await asyncio.to_thread(kazoo.close)
    words = ["access", "grant", f"cn:{name}", "operator"]
    refused = await dlog(scene.tls[name], *words, uri=scene.uri, fails=True)
    assert "refuses set /access" in refused


async def nobody_takes_the_ledger_of_another_log(scene: Scene, found: BookieRegistration) -> None:
    """A client of ZooKeeper says by all that it can write there that the ledgers of a log are of
    its own. Bookies go by what it cannot write."""
    for again in (False, True):  # changed; deleted, and made again
        for operation in OPERATIONS:
            ledger_id = await made(scene.ledgers, scene.bookie, LOG)
            if operation == COPIES:
                await closed(scene.ledgers, ledger_id, 1)
                await locked(scene.ledgers, ledger_id, "cn:other", targets=(scene.bookie,))
            await labelled_by(scene, "other", ledger_id, "team/flights2", again=again)
            transport = transport_as(scene, found, "other")
            try:
                status = await do(operation, transport, scene.bookie, ledger_id)
            finally:
                await transport.close()
            assert status is Status.ACCESS_DENIED, operation
    node = f"/secured{owner_path(await made(scene.ledgers, scene.bookie, LOG))}"
    for name in ("other", "writer", "reader", "bookie-9"):
        kazoo = await connected(scene, name)
        try:
            assert (await asyncio.to_thread(kazoo.get, node))[0] == owner_value(
                LedgerOwner(LOG, "i1")
            )
            theirs = owner_value(LedgerOwner("team/flights2", "i1"))
            refused: list[tuple[Callable[..., object], tuple[object, ...]]] = [
                (kazoo.set, (node, theirs)),
                (kazoo.delete, (node,)),
                (kazoo.set_acls, (node, OPEN_ACL_UNSAFE)),
                (kazoo.create, (f"{node}/below",)),
                (kazoo.set, ("/secured/owners", theirs)),
                (kazoo.set_acls, ("/secured/owners", OPEN_ACL_UNSAFE)),
                (kazoo.create, ("/secured/renamed/i1", renamed_value("team/flights2", now_ms=1))),
            ]
            if name in ("reader", "bookie-9"):
                refused.append((kazoo.create, ("/secured/owners/4711", theirs)))
            for call, arguments in refused:
                with pytest.raises(NoAuthError):
                    await asyncio.to_thread(call, *arguments)
        finally:
            await asyncio.to_thread(kazoo.stop)
            await asyncio.to_thread(kazoo.close)


async def labelled_by(
    scene: Scene, name: str, ledger_id: LedgerId, log: str, *, again: bool
) -> None:
    """Let *name* say in ZooKeeper that a ledger is of *log*."""
    async with scene.client(name) as client:
        metadata, version = await client.ledgers.read(ledger_id, fresh=True)
        stolen = replace(metadata, custom=stamp(log))
        if again:
            await client.ledgers.delete(ledger_id)
            layout = LAYOUTS[(await open_namespace(client.store)).layout]
            with pytest.raises(NodeExists):
                await client.store.create(owner_path(ledger_id))
            await client.store.create(layout.path(ledger_id), stolen.encode())
        else:
            await client.ledgers.write(ledger_id, stolen, version)


async def every_node_is_for_the_certificates(scene: Scene) -> None:
    """Each for those whom the roles name, also what bookies, writers and commands have made."""
    survey = await survey_acls(scene.store)
    assert survey is not None
    assert shown_roles(survey.roles) == IN_ZOOKEEPER
    assert (survey.differing, survey.missing, survey.whole) == (0, (), True), survey.examples
    report = json.loads(await dlog(scene.tls["client"], "doctor", "--json", uri=scene.uri))
    assert report["acls"]["bookies"] == IN_ZOOKEEPER["bookies"]
    assert [sign for sign in report["findings"] if sign["kind"].startswith("acl")] == []
