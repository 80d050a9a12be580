"""Who may touch which node of a namespace on ZooKeeper, by role."""

import pytest
from kazoo.security import Permissions

from bookie.autorecovery.marks import DELAY, DISABLE, URGENT
from dlog.kafka.protocol.users import USERS_PATH
from dlog.names import LOGS_PATH
from leader.election import LEADERS_PATH
from ledger.cluster import LAYOUT
from ledger.errors import InvalidValue
from ledger.ledger_owner import OWNERS_PATH, RENAMED_PATH
from ledger.manager.ids import ID_BLOCK_PATH, SEQUENCE_PATH
from ledger.manager.layout import LEDGERS
from ledger.manager.ledger_store import DELETIONS
from ledger.metastore.acl import (
    COOKIES,
    NODES,
    OWNERS,
    AclRoles,
    acl_of,
    digest_id,
    ids_of,
    nearest,
    roles_of,
)
from ledger.metastore.ops import INSTANCE, ROOT, parent_of
from ledger.registry import AVAILABLE, DECOMMISSIONING, READ_ONLY
from ledger.registry import COOKIES as OF_THE_REGISTRY
from ledger.repair_marks import LOCKS, MARKS
from ledger.security.access import ACCESS
from ledger.security.quotas import QUOTAS

OP, BOOKIE, OTHER, APP, REPORT = (
    f"x509:CN={name}" for name in ("op", "bookie-0", "bookie-1", "app", "report")
)
ROLES = AclRoles(operators=(OP,), bookies=(BOOKIE, OTHER), clients=(APP,), readers=(REPORT,))
FOR_OPERATORS = (ROOT, INSTANCE, LAYOUT, ACCESS, QUOTAS, RENAMED_PATH, DECOMMISSIONING)
CHANGING = Permissions.ALL & ~Permissions.READ


def rights(path: str, who: str) -> int:
    return sum(each.perms for each in ROLES.acl_at(path) if f"x509:{each.id.id}" == who)


@pytest.mark.parametrize("path", FOR_OPERATORS)
def test_what_decides_rights_is_for_operators_alone(path: str) -> None:
    below = f"{path.rstrip('/')}/below"
    for node in (path, below):
        assert rights(node, OP) == Permissions.ALL
        for who in (BOOKIE, APP, REPORT):
            assert rights(node, who) == Permissions.READ


def test_a_cookie_is_made_by_a_bookie_and_changed_by_nobody_but_it_and_operators() -> None:
    assert COOKIES == OF_THE_REGISTRY
    assert rights(COOKIES, BOOKIE) == Permissions.READ | Permissions.CREATE
    cookie = f"{COOKIES}/bookie-0"
    [creator] = [each for each in ROLES.acl_at(cookie) if each.id.scheme == "auth"]
    assert creator.perms == Permissions.READ | Permissions.WRITE
    for who in (BOOKIE, APP, REPORT):
        assert rights(cookie, who) == Permissions.READ


def test_an_owner_node_is_made_by_a_client_and_changed_by_nobody_but_operators() -> None:
    assert OWNERS == OWNERS_PATH
    assert rights(OWNERS, APP) == Permissions.READ | Permissions.CREATE
    for who in (BOOKIE, REPORT):
        assert rights(OWNERS, who) == Permissions.READ
    for who in (BOOKIE, APP, REPORT):
        assert rights(f"{OWNERS}/7", who) == Permissions.READ
    assert rights(f"{OWNERS}/7", OP) == Permissions.ALL


def test_each_does_its_work() -> None:
    change = Permissions.ALL & ~Permissions.ADMIN
    for path in (AVAILABLE, READ_ONLY, LOCKS, URGENT, DISABLE, DELAY):
        assert rights(path, BOOKIE) == change
        assert rights(path, APP) == Permissions.READ
    for path in (LEDGERS, DELETIONS, ID_BLOCK_PATH, SEQUENCE_PATH, MARKS, LEADERS_PATH):
        assert rights(path, BOOKIE) == rights(path, APP) == change
    assert (rights(LOGS_PATH, BOOKIE), rights(LOGS_PATH, APP)) == (Permissions.READ, change)
    for path in NODES:
        assert rights(path, REPORT) == (0 if path == USERS_PATH else Permissions.READ)


def test_hashes_of_passwords_are_for_gateways_alone() -> None:
    assert rights(USERS_PATH, APP) == Permissions.READ
    assert rights(USERS_PATH, BOOKIE) == rights(USERS_PATH, REPORT) == 0
    assert {each.split(" ")[0] for each in ROLES.ids_at(USERS_PATH)} == {OP, APP}


def test_nobody_but_operators_changes_acls_or_what_is_at_the_top() -> None:
    for path in NODES:
        for who in (BOOKIE, APP, REPORT):
            assert not rights(path, who) & Permissions.ADMIN
        if parent_of(path) == ROOT and path != ROOT:
            assert nearest(path) == path


def test_roles_are_read_from_the_acls_that_they_make() -> None:
    witnesses = (ROLES.ids_at(INSTANCE), ROLES.ids_at(COOKIES), ROLES.ids_at(LOGS_PATH))
    assert roles_of(*witnesses) == ROLES
    assert ids_of(acl_of(ROLES.ids_at(COOKIES))) == ROLES.ids_at(COOKIES)


def test_a_namespace_without_roles_has_one_acl() -> None:
    ids = ("x509:CN=a", "x509:CN=b", "x509:CN=report (read)")
    roles = roles_of(ids, ids, ids)
    assert not roles.keep_rights
    assert roles.readers == ("x509:CN=report",)
    for path in (*NODES, "/cookies/bookie-0", "/of/a/later/release"):
        assert roles.ids_at(path) == ids
        assert roles.allow(path, ids)
        assert not roles.allow(path, ids[:2])
    assert not roles_of(()).keep_rights
    assert roles_of(()).allow("/cookies/bookie-0", ())


def test_a_cookie_with_the_rights_of_others_is_found() -> None:
    mine = f"{COOKIES}/bookie-0"
    made = ROLES.ids_of_cookie(mine)
    assert f"{BOOKIE} (read+write)" in made
    assert f"{OTHER} (read)" in made
    assert ROLES.allow(mine, made)
    assert ROLES.allow(f"{COOKIES}/named-otherwise", ROLES.ids_of_cookie(f"{COOKIES}/x"))
    for wrong in (
        (*made, f"{APP} (read+write)"),
        tuple(each for each in made if OP not in each),
        (*(each for each in made if APP not in each), APP),
        ROLES.ids_at(COOKIES),
    ):
        assert not ROLES.allow(mine, wrong)


def test_roles_that_would_not_do_are_refused() -> None:
    with pytest.raises(InvalidValue, match="somebody who may change everything"):
        AclRoles(clients=(APP,)).checked()
    with pytest.raises(InvalidValue, match="name certificates"):
        AclRoles(operators=(OP, digest_id("me", "secret")), clients=(APP,)).checked()
