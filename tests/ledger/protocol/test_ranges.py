from itertools import pairwise

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


@given(SPANS, st.integers(0, 40), st.integers(-1, 12), st.integers(0, 40), st.integers(-1, 12))
def test_ranges_lose_list_and_leave_out_what_a_set_would(
    spans: list[tuple[int, int]], gone: int, gone_count: int, first: int, count: int
) -> None:
    ranges, model = Ranges(), set[int]()
    for begin, length in spans:
        ranges.add(begin, begin + length - 1)
        model.update(range(begin, begin + length))
    ranges.remove(gone, gone + gone_count - 1)
    model -= set(range(gone, gone + gone_count))
    assert [i in ranges for i in range(60)] == [i in model for i in range(60)]
    asked = range(first, first + count)
    parts = list(ranges.between(first, first + count - 1))
    gaps = list(ranges.gaps(first, first + count - 1))
    assert [i for a, b in parts for i in range(a, b + 1)] == [i for i in asked if i in model]
    assert [i for a, b in gaps for i in range(a, b + 1)] == [i for i in asked if i not in model]
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(parts))
