"""dlog for asyncio: `Log.open` to append, `Log.tail` to read."""

from dlog.aio.chunks import Chunk
from dlog.aio.consumer import Consumer
from dlog.aio.log import Log
from dlog.aio.many import ManyReader
from dlog.aio.ranges import read_range
from dlog.aio.reader import Reader
from dlog.aio.standby import Standby

__all__ = ["Chunk", "Consumer", "Log", "ManyReader", "Reader", "Standby", "read_range"]
