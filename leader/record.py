"""The value of a candidate's node: who it is, for people who look."""

from dataclasses import dataclass
from typing import Final, Self

from google.protobuf.message import DecodeError

from leader.wire import leader_pb2 as pb
from ledger.errors import DamagedMetadata

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    candidate: str
    since_ms: int

    def encode(self) -> bytes:
        node = pb.CandidateNode(
            version=FORMAT_VERSION, candidate=self.candidate, since_ms=self.since_ms
        )
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
        return cls(node.candidate, node.since_ms)
