"""The public name of `dlog.sync.admin`: `dlog.namespace` and `dlog.consumers` for threads."""

from dlog.sync.admin import *  # noqa: F403 - the names of its __all__, all of them public
from dlog.sync.admin import __all__ as __all__  # noqa: PLC0414 - it is exported too
