"""The public name of `dlog.aio.consumer_admin`: named consumers are looked at, reset, deleted."""

from dlog.aio.consumer_admin import *  # noqa: F403 - the names of its __all__, all of them public
from dlog.aio.consumer_admin import __all__ as __all__  # noqa: PLC0414 - it is exported too
