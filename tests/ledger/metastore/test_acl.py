"""Ids of ZooKeeper's ACLs, as text."""

import pytest
from kazoo.security import (
    ACL,
    CREATOR_ALL_ACL,
    OPEN_ACL_UNSAFE,
    READ_ACL_UNSAFE,
    Id,
    Permissions,
    make_digest_acl_credential,
)

from ledger.errors import InvalidValue
from ledger.metastore.acl import IDS_MAX, acl_of, checked_ids, digest_id, ids_of, is_masked

ME = digest_id("me", "secret")


def test_the_id_of_a_user_is_the_one_that_zookeeper_computes() -> None:
    assert "digest:" + make_digest_acl_credential("me", "secret") == ME


def test_ids_are_the_same_after_a_way_through_an_acl() -> None:
    ids = checked_ids(["x509:CN=dlog,O=Example", ME, ME, "sasl:dlog/host@REALM"])
    assert ids == (ME, "sasl:dlog/host@REALM", "x509:CN=dlog,O=Example")
    assert ids_of(acl_of(ids)) == ids
    assert ids_of(acl_of(())) == ()
    assert acl_of(()) == OPEN_ACL_UNSAFE


def test_who_may_only_read_is_written_as_it_is_shown() -> None:
    ids = checked_ids(["x509:CN=dlog,O=Example", "x509:CN=report (read)"])
    assert [each.perms for each in acl_of(ids)] == [Permissions.ALL, Permissions.READ]
    assert ids_of(acl_of(ids)) == ids


def test_somebody_may_change_a_namespace() -> None:
    with pytest.raises(InvalidValue, match="somebody who may change"):
        checked_ids(["x509:CN=report (read)"])


def test_who_may_only_read_cannot_be_where_users_have_passwords() -> None:
    with pytest.raises(InvalidValue, match="name certificates"):
        checked_ids(["x509:CN=report (read)", ME])


@pytest.mark.parametrize(
    "wrong",
    ["me", "x509:", "world:anyone", "auth:", "digest:me:secret", "digest:me", "ip:1\n", " (read)"],
)
def test_what_is_no_id_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidValue, match="acl="):
        checked_ids([wrong])


def test_a_password_in_place_of_a_hash_is_not_repeated() -> None:
    with pytest.raises(InvalidValue) as refused:
        checked_ids(["digest:me:secret"])
    assert "secret" not in str(refused.value)


def test_too_many_ids_are_refused() -> None:
    with pytest.raises(InvalidValue):
        checked_ids([f"ip:10.0.0.{each}" for each in range(IDS_MAX + 1)])


def test_who_has_less_than_all_rights_is_equal_to_nobody() -> None:
    assert ids_of(READ_ACL_UNSAFE) == ("world:anyone (read)",)
    assert ids_of([*acl_of((ME,)), *OPEN_ACL_UNSAFE]) == (ME, "world:anyone")
    assert ids_of([ACL(0, Id("ip", "::1"))]) == ("ip:::1 (nothing)",)
    assert ids_of(CREATOR_ALL_ACL) == ("auth:",)


def test_a_digest_that_the_server_hides_is_seen() -> None:
    assert is_masked(("digest:me:x",))
    assert is_masked(ids_of([ACL(Permissions.READ, Id("digest", "me:x"))]))
    assert not is_masked((ME, "x509:CN=x"))
