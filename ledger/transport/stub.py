"""The methods of the services of `dlog.bookie.v1` as a client calls them, with their types."""

from typing import Final

import grpc

from ledger.wire import bookie_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Bookie"].full_name
OPERATOR_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Operator"].full_name

AddCall = grpc.aio.StreamStreamCall[bytes, bytes]
UnaryCall = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class BookieStub:
    """Takes and gives bytes of `ledger.transport.messages`. Cheap to make; holds nothing but the
    channel's methods."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.add: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/{SERVICE}/Add"
        )
        self.read: UnaryCall = channel.unary_unary(f"/{SERVICE}/Read")
        self.read_lac: UnaryCall = channel.unary_unary(f"/{SERVICE}/ReadLac")
        self.info: UnaryCall = channel.unary_unary(f"/{SERVICE}/Info")
        self.read_held: UnaryCall = channel.unary_unary(f"/{SERVICE}/ReadHeld")


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
