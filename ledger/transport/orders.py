"""Orders to a bookie, on the connection for operators: messages of bookie.proto and back.

An order is one field of `OrderRequest`, and its answer the field of `OrderReply` with the same
name. A program that does not know a field says that it does not know the order.
"""

from typing import Final

from google.protobuf.message import Message

from ledger.errors import BadMessage
from ledger.transport.checksum import checked, verified
from ledger.transport.envelope import Received
from ledger.wire import bookie_pb2 as pb

ORDER_BYTES_MAX: Final = 4096
REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
_UNKNOWN: Final = ""


def order_message(name: str, order: Message) -> bytes:
    """Return the message of *order*; *name* is its field in `OrderRequest`."""
    message = pb.OrderRequest()
    getattr(message, name).CopyFrom(order)
    getattr(message, name).SetInParent()
    return checked(message)


def order_of(received: Received) -> tuple[str, Message]:
    """Return field and value of an order; an empty field for one that is not known here. Raises
    `BadMessage`."""
    message, _ = verified(pb.OrderRequest, received)
    name = message.WhichOneof("order")
    return (_UNKNOWN, message) if name is None else (name, getattr(message, name))


def order_reply(reply: pb.OrderReply, request: bytes) -> bytes:
    return checked(reply, request=request)


def order_answer(received: Received, request: bytes) -> pb.OrderReply:
    """Return the reply to *request*. Raises `BadMessage`."""
    if len(received) > REPLY_BYTES_MAX:
        raise BadMessage("OrderReply", f"it has {len(received)} bytes")
    message, _ = verified(pb.OrderReply, received, request=request)
    return message
