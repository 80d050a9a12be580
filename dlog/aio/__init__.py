"""dlog for asyncio: `Log.open` to append, `Log.tail` to read."""

from dlog.aio.chunks import Chunk
from dlog.aio.log import Log
from dlog.aio.many import ManyReader
from dlog.aio.ranges import read_range
from dlog.aio.reader import Reader

__all__ = ["Chunk", "Log", "ManyReader", "Reader", "read_range"]
