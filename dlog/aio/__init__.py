"""dlog for asyncio: `Log.open` to append, `Log.tail` to read."""

from dlog.aio.log import Log
from dlog.aio.read.consumer import Consumer
from dlog.aio.read.many import ManyReader
from dlog.aio.read.ranges import read_range
from dlog.aio.read.reader import Reader
from dlog.aio.standby import Standby, leader_of
from dlog.chunk import Chunk

__all__ = ["Chunk", "Consumer", "Log", "ManyReader", "Reader", "Standby", "leader_of", "read_range"]
