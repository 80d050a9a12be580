"""How a connection between client and bookie is set up, in one place for both ends."""

from typing import Final

import grpc

from ledger.transport.messages import MESSAGE_BYTES_MAX
from ledger.transport.parts import PART_BYTES_MAX

Options = list[tuple[str, int]]

_COMMON: Final[Options] = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # A batch is half a megabyte; the default of 16 KiB would cut it into 32 frames.
    ("grpc.http2.max_frame_size", 1024 * 1024),
]
_KEEPALIVE_TIME_MS: Final = 10_000
_ENVELOPE_BYTES: Final = 4096
_HANDSHAKE_MS: Final = 5_000
_IDLE_MS: Final = 120_000
RECONNECT_MS_MAX: Final = 250
"""Who asks a bookie that was away, and has just come back, hears of it after as long as this at
most, and a fifth more. A recovery asks five times within 800 ms, and fails if too few answer."""


def server_options(connections_max: int) -> Options:
    """Return how a bookie listens; one connection more than *connections_max* is closed at once.

    Who connects and says nothing, or asks for nothing any more, makes room for others in time:
    a client that is closed so connects again by itself with its next call."""
    return [
        *_COMMON,
        # Larger ones come in parts: of each stream, so much is held before anybody sees it.
        ("grpc.max_receive_message_length", PART_BYTES_MAX + _ENVELOPE_BYTES),
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        # Two bookies on one port must be an error, not a load balancer.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_TIME_MS // 2),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def open_channel(address: str, *, connect_timeout_s: float) -> grpc.aio.Channel:
    """Return a channel of its own to *address*; it connects with the first call.

    A bookie is spoken to directly, whatever proxy the environment names, and what one channel
    learnt of an address (its back-off) does not slow down the next one."""
    connect_timeout_ms = max(1, int(connect_timeout_s * 1000))
    return grpc.aio.insecure_channel(
        address,
        options=[
            *_COMMON,
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.min_reconnect_backoff_ms", connect_timeout_ms),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
            ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIME_MS // 2),
        ],
    )
