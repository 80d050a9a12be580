"""Grants: what they allow, how they are kept. The rules are said a second time, dumbly."""

import asyncio
import fnmatch
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import BadVersion, DamagedMetadata, InvalidGrant, NoSuchGrant
from ledger.metastore.memory import MemoryStore
from ledger.security import access
from ledger.security.access import (
    ALLOWED,
    NEEDED,
    Grant,
    Permission,
    Role,
    Rules,
    allowed,
    grant_for,
)
from ledger.security.documents import change_rules, read_rules
from ledger.wire import metadata_pb2 as pb
from tests.ledger.flaky_store import FlakyStore
from tests.ledger.security.granted import LOGS, WHO, grants, rules

MAY = {
    "read": {"reader", "writer", "bookie", "operator"},
    "add": {"writer"},
    "recover": {"writer", "bookie", "operator"},
    "list": {"bookie", "operator"},
    "order": {"operator"},
}


def matches(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


def may(found: Rules, identity: str, action: Permission, log: str | None) -> bool:
    if identity.startswith("uri:dlog:bookie:") and "bookie" in MAY[action.name.lower()]:
        return True
    return any(matches(one.who, identity) and grants_it(one, action, log) for one in found.grants)


def grants_it(one: Grant, action: Permission, log: str | None) -> bool:
    own = log is not None and log[0] == "_"
    if own and action is Permission.ADD and one.role is Role.OPERATOR:
        return True
    if own and action is not Permission.READ and one.logs == "*" and one.role is Role.WRITER:
        return False
    if str(one.role) not in MAY[action.name.lower()]:
        return False
    return one.logs == "*" if log is None else matches(one.logs, log)


@given(rules)
def test_what_a_grant_allows_is_allowed_and_nothing_else(found: Rules) -> None:
    for identity in WHO:
        own = found.of(identity)
        for action, log in product(Permission, [*LOGS, None]):
            expected = may(found, identity, action, log)
            assert bool(allowed(own, log) & action) is expected
            assert (grant_for(own, action, log) is not None) is expected


@given(rules, grants())
def test_a_grant_that_is_taken_back_leaves_what_was_there_before(found: Rules, one: Grant) -> None:
    assert found.granted(one).granted(one) == found.granted(one)
    without = found.granted(one).revoked(one)
    assert without == (found.revoked(one) if one in found.grants else found)
    with pytest.raises(NoSuchGrant, match="there is no grant that"):
        without.revoked(one)


@given(rules, st.text(max_size=5), st.integers(0, 2**40))
def test_what_is_encoded_is_decoded_the_same(found: Rules, who: str, at_ms: int) -> None:
    told = Rules(found.grants, who, at_ms)
    again = Rules.decode(told.encode())
    assert (again, again.changed_by, again.changed_ms) == (told, who, at_ms)


@given(st.binary(max_size=60))
def test_bytes_that_mean_nothing_are_no_rules(value: bytes) -> None:
    with suppress(DamagedMetadata):  # and no other error
        Rules.decode(value)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (pb.AccessNode(version=2), "format version 2, this program knows 1"),
        (
            pb.AccessNode(version=1, grants=[pb.GrantNode(who="cn:a", role=99, logs="a")]),  # type: ignore[arg-type]
            "a grant that means nothing: 99",
        ),
        (
            pb.AccessNode(version=1, grants=[pb.GrantNode(who="a", role=pb.ACCESS_READER)]),
            "a grant that means nothing: 'a' cannot be granted",
        ),
    ],
)
def test_what_a_newer_program_wrote_is_not_taken_for_less(node: pb.AccessNode, reason: str) -> None:
    with pytest.raises(DamagedMetadata, match=reason):
        Rules.decode(node.SerializeToString())


@pytest.mark.parametrize(
    ("who", "role", "granted", "reason"),
    [
        ("alice", Role.READER, "a", "say who as KIND:NAME, with a KIND of uri, dns, cn"),
        ("mail:a", Role.READER, "a", "say who as KIND:NAME"),
        ("cn:", Role.READER, "a", "say who as KIND:NAME"),
        ("cn:a", Role.READER, "", "say which log"),
        ("cn:a", Role.OPERATOR, "a", "operator is a role of the whole cluster"),
        ("cn:a\n", Role.READER, "a", "characters that cannot be printed"),
        ("cn:" + "a" * 2000, Role.READER, "a", "over 1024 bytes"),
    ],
)
def test_a_grant_that_can_be_nobodys_is_refused(
    who: str, role: Role, granted: str, reason: str
) -> None:
    with pytest.raises(InvalidGrant, match=reason):
        Grant(who, role, granted)


def test_grants_are_bounded_in_number_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (Grant(f"cn:{name}", Role.READER, "a") for name in "ab")
    monkeypatch.setattr(access, "GRANTS_MAX", 1)
    with pytest.raises(InvalidGrant, match="1 in 524288 bytes are the most"):
        Rules((first,)).granted(second)
    monkeypatch.setattr(access, "GRANTS_MAX", 2)
    monkeypatch.setattr(access, "GRANTS_BYTES_MAX", 20)
    with pytest.raises(InvalidGrant, match="2 in 20 bytes"):
        Rules((first,)).granted(second)


def test_nobody_has_no_grants_not_even_those_of_everybody() -> None:
    assert Rules((Grant("*", Role.READER, "*"),)).of("") == ()


def test_the_role_that_is_asked_for_is_the_least_one() -> None:
    for action, role in NEEDED.items():
        assert ALLOWED[role] & action
        assert all(
            len(bits(ALLOWED[other])) >= len(bits(ALLOWED[role]))
            for other in Role
            if ALLOWED[other] & action and action is not Permission.RECOVER
        )


def bits(mask: int) -> set[Permission]:
    return {action for action in Permission if mask & action}


def test_changes_of_two_at_once_are_both_kept() -> None:
    async def scenario() -> None:
        store = MemoryStore("memory://access", "access")
        assert await read_rules(store) == Rules()
        wanted = [Grant(f"cn:{number}", Role.READER, "a") for number in range(4)]
        changes = await asyncio.gather(
            *(change_rules(store, lambda old, one=one: old.granted(one), by="me") for one in wanted)  # type: ignore[misc]
        )
        assert changes == [True] * 4
        found = await read_rules(store)
        assert (found.grants, found.changed_by) == (tuple(wanted), "me")
        assert found.changed_ms > 0
        assert not await change_rules(store, lambda old: old.granted(wanted[0]), by="you")
        assert (await read_rules(store)).changed_by == "me", "nothing changed"
        await store.close()

    asyncio.run(scenario())


class Busy(FlakyStore):
    async def set(self, path: str, value: bytes, version: int = -1) -> int:
        raise BadVersion(path, version)


def test_who_is_never_first_gives_up() -> None:
    async def scenario() -> None:
        store = Busy(MemoryStore("memory://busy", "busy"))
        one = Grant("cn:a", Role.READER, "a")
        assert await change_rules(store, lambda old: old.granted(one), by="me")
        with pytest.raises(BadVersion):
            await change_rules(store, lambda old: old.revoked(one), by="me")
        await store.close()

    asyncio.run(scenario())
