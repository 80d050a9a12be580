"""The gRPC service `dlog.bookie.v1.Operator`, as both ends set it up.

Orders are few and the data path is not on it, so the library's defaults do, but for bounds: who may
connect, how much a message may have, how long silence may last.
"""

import os

# gRPC's own handlers of a fork wait for its threads, and make children hang or abort where those
# are busy. They are of no use here, because no child uses its parent's connections.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from math import inf
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from ledger.security.certificates import Security
from ledger.security.names import Certificate
from ledger.wire import bookie_pb2 as pb

BOOKIE_KEY: Final = "dlog-bookie-bin"
"""Metadata of a call: which bookie is meant. Whoever is there answers if it is not given."""
OPERATORS_MAX: Final = 32
"""Connections at a time."""
CALLS_MAX: Final = 64
_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Operator"]
_ORDER_BYTES_MAX: Final = 4096
_REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
_HANDSHAKE_MS: Final = 5_000
_IDLE_MS: Final = 120_000
_AGE_MS: Final = 3_600_000
_KEEPALIVE_MS: Final = 10_000

Context = grpc.aio.ServicerContext[Any, Any]
Method = grpc.aio.UnaryUnaryMultiCallable[Any, Any]


def operator_server() -> grpc.aio.Server:
    """Return a server for operators; one connection more than `OPERATORS_MAX` is closed."""
    return grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", _ORDER_BYTES_MAX),
            ("grpc.max_send_message_length", _REPLY_BYTES_MAX),
            ("grpc.max_allowed_incoming_connections", OPERATORS_MAX),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
            ("grpc.max_connection_age_ms", _AGE_MS),
            ("grpc.max_connection_age_grace_ms", _AGE_MS),
            ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
            # Two bookies on one port must be an error, not a load balancer.
            ("grpc.so_reuseport", 0),
        ],
        maximum_concurrent_rpcs=CALLS_MAX,
    )


def server_credentials(security: Security) -> grpc.ServerCredentials:
    """Return credentials by which a server demands a certificate of each operator.

    The files are looked at with each connection."""
    generation = security.generation

    def configuration() -> grpc.ServerCertificateConfiguration:
        pem = security.pem()
        return grpc.ssl_server_certificate_configuration(
            [(pem.key, pem.cert)], root_certificates=pem.ca
        )

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal generation
        security.look()
        if security.generation == generation:
            return None
        generation = security.generation
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        renewed,  # type: ignore[arg-type] # None, for "as before", is missing in the stubs
        require_client_authentication=True,
    )


def certificate_of_caller(context: Context) -> Certificate | None:
    """Return the certificate of who gives an order, as far as gRPC tells; None: it has none."""
    found = context.auth_context()
    if found.get("transport_security_type") != [b"ssl"]:
        return None

    def of(kind: str) -> tuple[str, ...]:
        return tuple(value.decode(errors="replace") for value in found.get(kind, ()))

    (common_name, *_) = (*of("x509_common_name"), "")
    return Certificate(inf, of("peer_uri"), of("peer_dns"), of("peer_ip"), common_name)


def operator_handlers(methods: dict[str, Any]) -> grpc.GenericRpcHandler:
    """Return the service, with what carries out each of its orders."""
    assert methods.keys() == {method.name for method in _SERVICE.methods}
    return grpc.method_handlers_generic_handler(
        _SERVICE.full_name,
        {
            method.name: grpc.unary_unary_rpc_method_handler(
                methods[method.name],
                _class_of(method.input_type.name).FromString,
                _class_of(method.output_type.name).SerializeToString,
            )
            for method in _SERVICE.methods
        },
    )


def operator_channel(
    address: str, *, connect_timeout_s: float, security: Security | None = None
) -> grpc.aio.Channel:
    """Return a channel of its own to *address*; it connects with the first call.

    A bookie is spoken to directly, whatever proxy the environment names. With *security* it has
    TLS, and its certificate must name the host of *address*: gRPC looks for nothing else."""
    options = [
        ("grpc.max_receive_message_length", _REPLY_BYTES_MAX),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", max(1, int(connect_timeout_s * 1000))),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS // 2),
    ]
    if security is None:
        return grpc.aio.insecure_channel(address, options=options)
    pem = security.pem()
    credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
    return grpc.aio.secure_channel(address, credentials, options=options)


def operator_methods(channel: grpc.aio.Channel) -> dict[str, Method]:
    """Return the orders of the service as its client calls them, by name."""
    return {
        method.name: channel.unary_unary(
            f"/{_SERVICE.full_name}/{method.name}",
            _class_of(method.input_type.name).SerializeToString,
            _class_of(method.output_type.name).FromString,
        )
        for method in _SERVICE.methods
    }


def _class_of(name: str) -> type[Message]:
    found: type[Message] = getattr(pb, name)
    return found
