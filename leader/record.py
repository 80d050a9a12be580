"""The value of a candidate's node: who it is, and how its successor learns of its death."""

from dataclasses import dataclass
from typing import Final, Self

from google.protobuf.message import DecodeError

from leader.errors import InvalidCampaign
from leader.refusals import LifelineAddress
from leader.wire import leader_pb2 as pb
from ledger.errors import DamagedMetadata
from ledger.process import this_process

FORMAT_VERSION: Final = 1
TEXT_MAX: Final = 500
"""Characters of what a candidate says of itself."""


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
            node.lifeline_host = self.lifeline.host
            node.lifeline_port = self.lifeline.port
            node.lifeline_secret = self.lifeline.secret
            node.lifeline_network = self.lifeline.network
            node.lifeline_tls = self.lifeline.tls
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
        lifeline = None
        if node.lifeline_port:
            lifeline = LifelineAddress(
                node.lifeline_host,
                node.lifeline_port,
                node.lifeline_secret,
                node.lifeline_network,
                node.lifeline_tls,
            )
        return cls(node.candidate, node.since_ms, lifeline, node.address)
