"""Ports that nobody listens on now."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack


def free_ports(count: int) -> Sequence[int]:
    with ExitStack() as stack:  # all at once, so that no two are the same
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
