"""Which process this is, for people who look."""

import os
import socket


def this_process() -> str:
    """Return ``host:pid``, by which people find this process."""
    return f"{socket.gethostname()}:{os.getpid()}"
