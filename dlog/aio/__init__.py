"""dlog for asyncio: `Log.open` to append, `Log.tail` to read."""

from typing import TYPE_CHECKING, Final

from ledger.late import late_names

if TYPE_CHECKING:
    from dlog.aio.log import Log
    from dlog.aio.read.chunks import read_range
    from dlog.aio.read.consumer import Consumer
    from dlog.aio.read.many import ManyReader
    from dlog.aio.read.reader import Reader
    from dlog.aio.replica import Replica
    from dlog.aio.standby import Standby, leader_of
    from dlog.chunk import Chunk

__all__ = [
    "Chunk",
    "Consumer",
    "Log",
    "ManyReader",
    "Reader",
    "Replica",
    "Standby",
    "leader_of",
    "read_range",
]

_HOMES: Final = {
    "Chunk": "dlog.chunk",
    "Consumer": "dlog.aio.read.consumer",
    "Log": "dlog.aio.log",
    "ManyReader": "dlog.aio.read.many",
    "Reader": "dlog.aio.read.reader",
    "Replica": "dlog.aio.replica",
    "Standby": "dlog.aio.standby",
    "leader_of": "dlog.aio.standby",
    "read_range": "dlog.aio.read.chunks",
}

__getattr__ = late_names(__name__, _HOMES)
