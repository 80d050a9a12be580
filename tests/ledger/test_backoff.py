from hypothesis import given
from hypothesis import strategies as st

from ledger.delays import Backoff


def test_delays_double_up_to_their_bound_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert [backoff.next() for _ in range(2)] == [0.5, 1.0]


@given(first_s=st.floats(0.001, 100), max_s=st.floats(0.001, 100), tries=st.integers(1, 2000))
def test_no_delay_is_above_the_bound_nor_shorter_than_the_one_before(
    first_s: float, max_s: float, tries: int
) -> None:
    backoff = Backoff(first_s, max_s)
    delays = [backoff.next() for _ in range(tries)]
    assert delays == sorted(delays)
    assert delays[0] > 0
    assert delays[-1] <= max_s
