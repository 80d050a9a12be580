"""The methods of service `dlog.bookie.v1.Bookie` as a client calls them, with their types."""

from typing import Final

import grpc

from ledger.wire import bookie_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Bookie"].full_name

AddCall = grpc.aio.StreamStreamCall[pb.AddBatch, pb.AddAck]


class BookieStub:
    """Cheap to make; holds nothing but the channel's methods."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.add: grpc.aio.StreamStreamMultiCallable[pb.AddBatch, pb.AddAck] = (
            channel.stream_stream(
                f"/{SERVICE}/Add", pb.AddBatch.SerializeToString, pb.AddAck.FromString
            )
        )
        self.read: grpc.aio.UnaryUnaryMultiCallable[pb.ReadRequest, pb.ReadReply] = (
            channel.unary_unary(
                f"/{SERVICE}/Read", pb.ReadRequest.SerializeToString, pb.ReadReply.FromString
            )
        )
        self.read_lac: grpc.aio.UnaryUnaryMultiCallable[pb.ReadLacRequest, pb.ReadLacReply] = (
            channel.unary_unary(
                f"/{SERVICE}/ReadLac",
                pb.ReadLacRequest.SerializeToString,
                pb.ReadLacReply.FromString,
            )
        )
        self.info: grpc.aio.UnaryUnaryMultiCallable[pb.InfoRequest, pb.InfoReply] = (
            channel.unary_unary(
                f"/{SERVICE}/Info", pb.InfoRequest.SerializeToString, pb.InfoReply.FromString
            )
        )
