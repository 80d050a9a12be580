"""The value of a candidate's node: who it is, and how its successor learns of its death."""

from dataclasses import dataclass
from typing import Final, Self

from google.protobuf.message import DecodeError

from leader.refusals import LifelineAddress
from leader.wire import leader_pb2 as pb
from ledger.errors import DamagedMetadata

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    candidate: str
    since_ms: int
    lifeline: LifelineAddress | None = None

    def encode(self) -> bytes:
        node = pb.CandidateNode(
            version=FORMAT_VERSION, candidate=self.candidate, since_ms=self.since_ms
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
        return cls(node.candidate, node.since_ms, lifeline)
