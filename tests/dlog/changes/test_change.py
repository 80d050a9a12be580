"""What is written down of a change can be read again, and nothing else passes for one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.changes.change import ITEMS_MAX, TEXT_MAX, Change, ChangeOutcome, joined

texts = st.text(max_size=20)
arguments = st.dictionaries(
    texts,
    st.one_of(st.none(), st.booleans(), st.integers(), texts, st.lists(texts, max_size=3)),
    max_size=4,
)


def change(number: str = "1", command: str = "log seal", **more: object) -> Change:
    facts = {"number": number, "who": "cn:a", "place": "h:1", "command": command, "begun_ms": 5}
    return Change(**{**facts, **more})  # type: ignore[arg-type] # by name


@given(texts, texts, arguments, st.sampled_from(ChangeOutcome), st.none() | st.integers(1, 2**50))
def test_what_is_written_is_read_again(
    who: str, error: str, given_: dict[str, object], outcome: ChangeOutcome, ended_ms: int | None
) -> None:
    one = change(who=who, error=error, arguments=given_, outcome=outcome, ended_ms=ended_ms)
    assert Change.decode(one.encode()) == one


@given(st.one_of(st.binary(), st.recursive(texts, st.lists).map(json.dumps)))
def test_what_is_no_change_is_read_as_none(value: bytes | str) -> None:
    assert Change.decode(value if isinstance(value, bytes) else value.encode()) is None


@pytest.mark.parametrize("name", ["version", "number", "who", "begun_ms", "arguments", "outcome"])
def test_a_record_with_a_field_of_another_kind_is_read_as_none(name: str) -> None:
    facts = json.loads(change().encode())
    wrong: object
    for wrong in (None, [], 1.5):
        assert Change.decode(json.dumps({**facts, name: wrong}).encode()) is None
    del facts[name]
    assert Change.decode(json.dumps(facts).encode()) is None


def test_a_huge_argument_is_cut() -> None:
    huge = "x" * 10**6
    one = change(error=huge, arguments={"log": huge, "logs": [huge] * 1000})
    found = Change.decode(one.encode())
    assert found is not None
    assert len(str(found.arguments["log"])) == len(found.error) == TEXT_MAX
    logs = found.arguments["logs"]
    assert isinstance(logs, list)
    assert len(logs) == ITEMS_MAX


def test_a_change_is_listed_once_with_its_outcome_whichever_record_came_twice() -> None:
    first, second = change("1"), change("2")
    done = first.ended(ChangeOutcome.DONE, 7)
    found = joined([first, first, second, done, first, done], changes_max=10)
    assert found == [done, second]
    assert joined([first, second, done], changes_max=1) == [done]
