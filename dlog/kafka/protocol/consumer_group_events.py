"""Requests, answers and stored state of the coordinator of a consumer group.

`dlog.kafka.protocol.consumer_group` has the rules.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

NO_GENERATION: Final = -1
CONSUMER: Final = "consumer"
"""The protocol type of groups of consumers; Connect has another one."""
_HEAD: Final = struct.Struct(">hi")
_SIZE: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Assignor:
    """A protocol that a member can do, with what it tells the leader for it."""

    name: str
    metadata: bytes


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignors: tuple[Assignor, ...]
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGeneration:
    """All of a group that outlives its coordinator, offsets aside."""

    generation: int
    protocol_type: str
    protocol: str
    leader_id: str
    is_assigned: bool
    """Whether the leader has assigned; always, if there are no members."""
    members: tuple[StoredMember, ...]


# Events. A ticket names the request that waits for the `Reply`; it is used once.


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequested:
    ticket: int
    member_id: str
    """Empty: a new member, or a static one that restarted."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    assignors: tuple[Assignor, ...]
    new_member_id: str
    """Random: what a new member is called."""
    needs_known_id: bool = True
    """Whether a new dynamic member has to join again with its id (JoinGroup 4 and newer)."""
    can_skip_assignment: bool = False
    """Whether a leader that restarted can be told not to assign (JoinGroup 9 and newer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequested:
    ticket: int
    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    """By member id; of the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    ticket: int
    members: tuple[tuple[str, str | None], ...]
    """Member ids and instance ids; an empty member id: whichever has the instance id."""


@dataclass(frozen=True, slots=True)
class Stored:
    """`Store` number *number* is in the log, confirmed. They come in order."""

    number: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """`ConsumerGroup.deadline_ms` has passed, or may have."""


GroupEvent = JoinRequested | SyncRequested | LeaveRequested | Stored | DeadlinePassed

# Replies and effects.


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    error: ErrorCode = ErrorCode.none
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """For the leader alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaveReply:
    errors: tuple[ErrorCode, ...]
    """One for each member of the request."""


@dataclass(frozen=True, slots=True)
class Reply:
    ticket: int
    reply: JoinReply | SyncReply | LeaveReply


@dataclass(frozen=True, slots=True)
class Store:
    number: int
    generation: StoredGeneration


GroupEffect = Reply | Store
