"""The value of a candidate's node: who it is, and how its successor learns of its death; and who
leads a log now.

Who leads is for people and for tools, and never a basis for a decision.
"""

from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import unquote

from google.protobuf.message import DecodeError

from leader.election import LEADERS_PATH, candidacies, leaders_path
from leader.errors import InvalidCampaign
from leader.refusals import LifelineAddress
from leader.wire import leader_pb2 as pb
from ledger.errors import DamagedMetadata, NoSuchNode
from ledger.metastore.port import MetadataStore
from ledger.process import this_process

FORMAT_VERSION: Final = 1
TEXT_MAX: Final = 500
"""Characters of what a candidate says of itself."""
UNREADABLE: Final = "(unreadable)"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who stands for election, as people and clients of the application are told. Raises
    `InvalidCampaign`."""

    name: str = ""
    """For people: ``host:pid`` unless given."""
    address: str = ""
    """Where clients reach the application, say ``https://app-1:8000``: shown by `leader_of`, and
    used by nothing here."""

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("address", self.address)):
            if len(text) > TEXT_MAX or not text.isprintable():
                raise InvalidCampaign(
                    f"the {what} {text[:80]!r} of the candidate cannot be used: give up to "
                    f"{TEXT_MAX} characters that can be printed"
                )

    @classmethod
    def of(cls, given: "Candidate | str") -> "Candidate":
        """Return the candidate that is meant by *given*: text is its name."""
        candidate = cls(given) if isinstance(given, str) else given
        return candidate if candidate.name else cls(this_process(), candidate.address)


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    candidate: str
    since_ms: int
    lifeline: LifelineAddress | None = None
    address: str = ""

    def encode(self) -> bytes:
        node = pb.CandidateNode(
            version=FORMAT_VERSION,
            candidate=self.candidate,
            since_ms=self.since_ms,
            address=self.address,
        )
        if self.lifeline is not None:
            self.lifeline.write_to(node)
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, *, path: str) -> Self:
        """Return what *value*, read at *path*, says. Raises `DamagedMetadata`."""
        try:
            node = pb.CandidateNode.FromString(value)
        except DecodeError as error:
            raise DamagedMetadata(path, str(error)) from error
        if node.version != FORMAT_VERSION:
            raise DamagedMetadata(
                path, f"format version {node.version}, this program knows {FORMAT_VERSION}"
            )
        lifeline = LifelineAddress.of_node(node)
        return cls(node.candidate, node.since_ms, lifeline, node.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderInfo:
    log: str
    candidate: str
    """`UNREADABLE` if its record is damaged, or of a later version."""
    address: str
    """Where clients reach it, as it said itself; empty: it said nothing."""
    epoch: int
    since_ms: int
    """When it stood for election; it leads since then or later. 0: not known."""


async def current_leader(store: MetadataStore, log: str) -> LeaderInfo | None:
    """Return who leads *log* as the store sees it, or None if nobody does.

    A leader that died is named until its session has ended."""
    found = await _candidates(store, log, count_max=1)
    return found[0] if found else None


async def candidates(store: MetadataStore, log: str) -> list[LeaderInfo]:
    """Return who leads *log* and, after it, who waits to, in the order in which they will."""
    return await _candidates(store, log, count_max=None)


async def contested_logs(store: MetadataStore) -> list[str]:
    """Return the names of elections that anybody ever stood in and that are not forgotten."""
    await store.sync(LEADERS_PATH)
    try:
        children = await store.children(LEADERS_PATH)
    except NoSuchNode:
        return []
    return sorted(map(unquote, children))


async def is_led(store: MetadataStore, log: str) -> bool | None:
    """Return whether anybody stands for election, as the store sees it without `sync`; None if
    nobody ever did. One call, for who looks at many logs. Raises `MetadataUnavailable`."""
    try:
        children = await store.children(leaders_path(log))
    except NoSuchNode:
        return None
    return bool(candidacies(children))


async def _candidates(store: MetadataStore, log: str, *, count_max: int | None) -> list[LeaderInfo]:
    path = leaders_path(log)
    await store.sync(path)
    try:
        children = await store.children(path)
    except NoSuchNode:
        return []
    found: list[LeaderInfo] = []
    for candidacy in candidacies(children):
        if count_max is not None and len(found) >= count_max:
            break
        node = f"{path}/{candidacy.name}"
        try:
            versioned = await store.get(node)
        except NoSuchNode:
            continue  # it went between the two reads: the next one leads
        try:
            record = CandidateRecord.decode(versioned.value, path=node)
        except DamagedMetadata:  # its session shows who leads, whatever its record says
            record = CandidateRecord(UNREADABLE, 0)
        found.append(
            LeaderInfo(
                log=log,
                candidate=record.candidate,
                address=record.address,
                epoch=candidacy.sequence,
                since_ms=record.since_ms,
            )
        )
    return found
