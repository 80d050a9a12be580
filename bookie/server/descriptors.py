"""How the descriptors that the system lets a bookie open are shared out.

Connections come from strangers, and each takes one; a checkpoint that finds none left ends the
bookie. So both have a share of their own, and what is beyond a share is never opened.
"""

import resource
from dataclasses import dataclass
from typing import Final

from bookie.errors import TooFewDescriptors

LIMIT_MAX: Final = 65_536
"""More are not asked for: some systems allow a billion."""
CONNECTIONS_MAX: Final = 16_384
CONNECTIONS_MIN: Final = 32
FILES_MIN: Final = 16
_OTHERS: Final = 160
"""A flush has 64 files in use beside those kept open; the rest is for threads that read, the
metadata store, connections that are being refused, and what libraries open."""
_OTHERS_PER_DIRECTORY: Final = 8
_CACHES: Final = 2
"""Index files and entry logs are kept open apart."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    connections_max: int
    files_open_max: int
    """Of index files, and of entry logs."""


def share_out(limit: int, *, directories: int, files_open_max: int) -> Descriptors:
    """Return the shares of *limit* descriptors: at most half of what is free goes to files.

    *directories*: how many places for journals and ledgers there are, together.
    *files_open_max*: more files are not wanted. Raises `TooFewDescriptors`."""
    others = _OTHERS + _OTHERS_PER_DIRECTORY * directories
    needed = others + CONNECTIONS_MIN + 2 * _CACHES * FILES_MIN
    if limit < needed:
        raise TooFewDescriptors(limit, needed)
    files = min(files_open_max, (limit - others) // (2 * _CACHES))
    return Descriptors(min(CONNECTIONS_MAX, limit - others - _CACHES * files), files)


def descriptor_limit() -> int:
    """Return how many descriptors this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Allow this process as many as the system lets it have, up to `LIMIT_MAX`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
