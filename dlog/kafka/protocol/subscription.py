"""Which topics a member of a group of consumers is subscribed to, from the metadata that its client
sends: Kafka's consumer protocol, of which only the topics are read here."""

import struct
from collections.abc import Iterable
from typing import Final

from dlog.kafka.protocol.consumer_group_events import Assignor

CONSUMER: Final = "consumer"
"""The protocol type of groups of consumers; Connect has another one."""
_HEAD: Final = struct.Struct(">hi")
_SIZE: Final = struct.Struct(">h")


def subscribed_topics(assignors: Iterable[Assignor]) -> set[str] | None:
    """Return the topics that the metadata for any of *assignors* names; None if it cannot be
    read."""
    topics: set[str] = set()
    for assignor in assignors:
        try:
            _, count = _HEAD.unpack_from(assignor.metadata)
            at = _HEAD.size
            for _ in range(count):
                [size] = _SIZE.unpack_from(assignor.metadata, at)
                at += _SIZE.size
                name = assignor.metadata[at : at + size]
                if size < 0 or len(name) != size:
                    return None
                topics.add(name.decode())
                at += size
        except (struct.error, UnicodeDecodeError):
            return None
    return topics
