import pytest

from dlog.errors import ConsumerFenced
from dlog.protocol.consumer_steps import ConsumerState

STATE = ConsumerState(incarnation="c", log_incarnation="l", position=5)


def commit(state: ConsumerState, offset: int, by: ConsumerState) -> ConsumerState:
    return state.committed(offset, by=by, name="c", now_ms=1)


def exclusively(state: ConsumerState, owner: str = "o") -> ConsumerState:
    return state.opened(exclusive=True, owner=owner, now_ms=1)


def test_a_commit_moves_the_position_forward_or_nowhere() -> None:
    assert commit(STATE, 9, STATE).position == 9
    for offset in (0, 4, 5):
        assert commit(STATE, offset, STATE) is STATE


def test_shared_handles_share_an_epoch() -> None:
    other = STATE.opened(exclusive=False, owner="o", now_ms=1)
    assert other is STATE
    assert commit(commit(STATE, 9, other), 7, STATE).position == 9


def test_an_exclusive_open_fences_every_handle_before() -> None:
    first = exclusively(STATE, "first")
    second = exclusively(first, "second")
    assert commit(first, 6, first).position == 6
    for before in (STATE, first):
        with pytest.raises(ConsumerFenced, match="second"):
            commit(second, 9, before)
    assert commit(second, 9, second).position == 9


def test_whose_clock_is_behind_fences_like_anybody_else() -> None:
    """The wall clock in a state is for people."""
    ahead = STATE.opened(exclusive=True, owner="first", now_ms=60_000)
    behind = ahead.opened(exclusive=True, owner="second", now_ms=0)
    with pytest.raises(ConsumerFenced, match="second"):
        commit(behind, 9, ahead)
    assert commit(behind, 9, behind).position == 9


def test_the_end_of_exclusiveness_fences_who_had_it() -> None:
    alone = exclusively(STATE)
    shared = alone.opened(exclusive=False, owner="o", now_ms=1)
    assert not shared.exclusive
    with pytest.raises(ConsumerFenced):
        commit(shared, 9, alone)
    assert commit(shared, 9, shared).position == 9


@pytest.mark.parametrize("offset", [0, 5, 100])
def test_a_reset_moves_anywhere_and_is_not_undone_by_who_does_not_know_of_it(offset: int) -> None:
    state = STATE.was_reset(offset, owner="admin", now_ms=1)
    assert state.position == offset
    with pytest.raises(ConsumerFenced, match="admin"):
        commit(state, 9, STATE)


def test_a_consumer_that_was_deleted_and_made_again_is_another_one() -> None:
    again = ConsumerState(incarnation="d", log_incarnation="l", position=0)
    with pytest.raises(ConsumerFenced):
        commit(again, 9, STATE)
