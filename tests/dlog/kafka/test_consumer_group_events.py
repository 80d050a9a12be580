"""Topics in what a client sends for an assignor."""

import pytest

from dlog.kafka.protocol.consumer_group_events import Assignor, subscribed_topics

ONE = b"\0\1\0\0\0\1\0\6orders\xff\xff\xff\xff"
TWO = b"\0\1\0\0\0\2\0\1a\0\2\xc3\xa9"


def test_the_topics_of_every_assignor_are_found() -> None:
    assert subscribed_topics([Assignor("range", ONE), Assignor("sticky", TWO)]) == {
        "orders",
        "a",
        "é",
    }
    assert subscribed_topics([]) == set()


@pytest.mark.parametrize(
    "metadata",
    [b"", ONE[:7], ONE[:-6], TWO[:-1] + b"\xff", b"\0\1\x7f\xff\xff\xff", b"\0\1\0\0\0\1\xff\xff"],
)
def test_what_cannot_be_read_is_not_guessed_at(metadata: bytes) -> None:
    assert subscribed_topics([Assignor("range", ONE), Assignor("own", metadata)]) is None
