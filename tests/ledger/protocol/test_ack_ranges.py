from hypothesis import given
from hypothesis import strategies as st

from ledger.protocol.acks import Ranges

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=12)


@given(SPANS, st.integers(0, 30))
def test_ranges_hold_what_a_set_would_hold(spans: list[tuple[int, int]], below: int) -> None:
    ranges, model = Ranges(), set[int]()
    for first, count in spans:
        ranges.add(first, first + count - 1)
        model.update(range(first, first + count))
    assert [i in ranges for i in range(40)] == [i in model for i in range(40)]
    ranges.drop_below(below)
    model = {i for i in model if i >= below}
    assert [i in ranges for i in range(40)] == [i in model for i in range(40)]


def test_end_from_stops_at_the_first_gap() -> None:
    ranges = Ranges()
    ranges.add(0, 3)
    ranges.add(5, 9)
    assert ranges.end_from(0) == 3
    assert ranges.end_from(4) == 3
    assert ranges.end_from(6) == 9
    ranges.add(4, 4)
    assert ranges.end_from(0) == 9
