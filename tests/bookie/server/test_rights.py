"""What a bookie remembers of rights says what the rules say, whatever changed in between."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.server import authorizer
from bookie.server.authorizer import RightsTable
from bookie.server.metadata_lookups import Owned
from ledger.security.access import Grant, Permission, Role, Rules, allowed
from tests.bookie.runs import run_of
from tests.ledger.security.granted import LOGS, WHO, rules

LEDGERS = range(3)
owners = st.sampled_from([*LOGS, None])
steps = st.lists(
    st.one_of(
        rules,
        st.tuples(st.sampled_from(LEDGERS), owners),
        st.just("renamed"),
        st.tuples(st.sampled_from(WHO), st.sampled_from(LEDGERS), st.sampled_from(Permission)),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(steps)
def test_what_is_remembered_never_says_more_or_less_than_the_rules(
    story: list[Rules | str | tuple[object, ...]],
) -> None:
    table, known, now = RightsTable(), dict[int, str | None](), Rules()
    kept = [table.rights(who) for who in WHO]
    for step in story:
        match step:
            case Rules():
                now = step
                table.learn_rules(step)
            case "renamed":
                known.clear()
                table.learn_names()
            case (int(ledger_id), str() | None as owner):
                if ledger_id not in known:
                    table.learn_owned(ledger_id, Owned(owner, 3, 2), names=table.names)
                    known[ledger_id] = owner
            case (str(who), int(ledger_id), Permission() as action):
                ours = next(each for each in kept if each.who == who)
                said = ours.may(ledger_id, action)
                truth = {
                    bool(allowed(now.of(who), owner) & action)
                    for owner in ([known[ledger_id]] if ledger_id in known else [*LOGS, None])
                }
                assert said in truth if said is not None else ledger_id not in known
                if action is Permission.ADD:
                    for recovery in (False, True):
                        run = run_of(0, ledger_id=ledger_id, recovery=recovery)
                        assert ours.admit([run]) is (said is True), "a flag changes nothing"
            case _:
                raise AssertionError(step)


def test_a_name_that_was_looked_up_before_a_rename_is_not_believed_after_it() -> None:
    table = RightsTable()
    names = table.names
    table.learn_names()
    table.learn_owned(1, Owned("old", 3, 2), names=names)
    assert table.rights("uri:dlog:bookie:b").may(1, Permission.READ), "wherever it belongs"
    table.learn_rules(Rules())
    assert table.rights("cn:a").may(1, Permission.READ) is False, "it has no grant at all"
    assert table.owner(1) is table.owner(2), "not known"


def test_rights_by_a_name_end_with_it() -> None:
    table = RightsTable()
    table.learn_rules(Rules((Grant("cn:a", Role.WRITER, "a"),)))
    ours = table.rights("cn:a")
    table.learn_owned(1, Owned("a", 3, 2), names=table.names)
    assert ours.may(1, Permission.ADD)
    table.learn_names()
    assert not ours.admit([run_of(0, ledger_id=1)])
    assert ours.may(1, Permission.ADD) is None, "it is asked for again"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer, "OWNERS_MAX", 3)
    monkeypatch.setattr(authorizer, "MASKS_MAX", 2)
    table = RightsTable()
    table.learn_rules(Rules((Grant("cn:a", Role.WRITER, "a"),)))
    ours = table.rights("cn:a")
    for ledger_id in range(10):
        table.learn_owned(ledger_id, Owned("a", 3, 2), names=table.names)
        assert ours.may(ledger_id, Permission.ADD)
        assert len(ours._masks) <= 2
    assert len(table._owners) == 3
    assert table.rights("cn:a") is ours, "connections of one identity share it"
    del ours
    assert not table._rights, "who went is forgotten"
