"""The parts of a lone append are those of the bookie that made the quorum, and leave no gap."""

import pytest

from benchmarks.lone import PARTS, parts_of
from benchmarks.stamps import Stamp

CLIENT: list[Stamp] = [
    ("add", "b1", 12.0, 13.0),
    ("add", "b2", 14.0, 15.0),
    ("_acked", "b1 7", 40.0, 41.0),
    ("_acked", "b2 9", 50.0, 53.0),
    ("_confirm", "", 51.0, 52.0),
]
B1: list[Stamp] = [
    ("_take", "7", 20.0, 21.0),
    ("sync", "", 22.0, 35.0),
    ("send", "7", 36.0, 37.0),
]
B2: list[Stamp] = [
    ("_take", "8", 3.0, 4.0),
    ("_take", "9", 21.0, 23.0),
    ("sync", "", 24.0, 44.0),
    ("send", "9", 45.0, 46.0),
]


def test_its_parts_add_up_to_the_whole_append() -> None:
    parts = parts_of((10.0, 60.0), CLIENT, {"b1": B1, "b2": B2})

    assert parts == [2.0, 3.0, 6.0, 2.0, 1.0, 20.0, 2.0, 4.0, 2.0, 8.0]
    assert len(parts) == len(PARTS)
    assert sum(parts) == 50.0


@pytest.mark.parametrize(
    ("client", "bookie"),
    [
        (CLIENT, [*B2, ("sync", "", 30.0, 31.0)]),
        ([*CLIENT, ("add", "b2", 16.0, 17.0)], B2),
        ([*CLIENT, ("_confirm", "", 55.0, 56.0)], B2),
    ],
    ids=["a checkpoint synced", "the LAC was sent, too", "another was confirmed"],
)
def test_an_append_in_whose_way_something_else_came_does_not_count(
    client: list[Stamp], bookie: list[Stamp]
) -> None:
    found = sorted(bookie, key=lambda each: each[2])

    assert parts_of((10.0, 60.0), client, {"b1": B1, "b2": found}) is None
