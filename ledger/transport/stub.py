"""The methods of the services of `dlog.bookie.v1` as a client calls them, with their types."""

from typing import Final

import grpc

from ledger.wire import bookie_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Bookie"].full_name
OPERATOR_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Operator"].full_name

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


class OperatorStub:
    """Cheap to make; holds nothing but the channel's methods."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.status: grpc.aio.UnaryUnaryMultiCallable[pb.StatusRequest, pb.StatusReply] = (
            channel.unary_unary(
                f"/{OPERATOR_SERVICE}/Status",
                pb.StatusRequest.SerializeToString,
                pb.StatusReply.FromString,
            )
        )
        self.collect: grpc.aio.UnaryUnaryMultiCallable[pb.CollectRequest, pb.CollectReply] = (
            channel.unary_unary(
                f"/{OPERATOR_SERVICE}/Collect",
                pb.CollectRequest.SerializeToString,
                pb.CollectReply.FromString,
            )
        )
        self.compact: grpc.aio.UnaryUnaryMultiCallable[pb.CompactRequest, pb.CompactReply] = (
            channel.unary_unary(
                f"/{OPERATOR_SERVICE}/Compact",
                pb.CompactRequest.SerializeToString,
                pb.CompactReply.FromString,
            )
        )
        self.set_read_only: grpc.aio.UnaryUnaryMultiCallable[
            pb.SetReadOnlyRequest, pb.SetReadOnlyReply
        ] = channel.unary_unary(
            f"/{OPERATOR_SERVICE}/SetReadOnly",
            pb.SetReadOnlyRequest.SerializeToString,
            pb.SetReadOnlyReply.FromString,
        )
