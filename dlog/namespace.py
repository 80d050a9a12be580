"""The public name of `dlog.aio.admin`: logs are listed, created, truncated, renamed, verified."""

from dlog.aio.admin import *  # noqa: F403 - the names of its __all__, all of them public
from dlog.aio.admin import __all__ as __all__  # noqa: PLC0414 - it is exported too
