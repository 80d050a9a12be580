"""Administration of logs and consumers for threads: `dlog.aio.admin` by calls that block.

    from dlog import admin

    admin.create_log("flights")
    admin.truncate_log("flights", keep_age_s=7 * 86400)
    print(admin.verify_log("flights").healthy)

A thin facade, as `dlog.Log`: each call runs on the private event-loop thread of this process and
raises what it raises there. Progress is reported on that thread. Leave *client* out: clients
belong to an event loop.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

from dlog.aio import admin
from dlog.aio.store import LogChange
from dlog.sync.loop_thread import BlockingHandle, LoopThread

__all__ = [
    "LogWatch",
    "archive_log",
    "audit_namespace",
    "clear_log_schema",
    "consumer_info",
    "create_log",
    "delete_consumer",
    "delete_log",
    "list_consumers",
    "list_logs",
    "log_compression",
    "log_exists",
    "log_info",
    "log_schemas",
    "log_settings",
    "plan_truncation",
    "rebuild_table",
    "rename_log",
    "reset_consumer",
    "restore_segments",
    "seal_log",
    "set_log_schema",
    "slowest_consumer",
    "table_info",
    "truncate_log",
    "update_settings",
    "verify_log",
    "verify_table",
    "watch_logs",
]

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    @wraps(call)
    def blocking(*args: P.args, **kwargs: P.kwargs) -> T:
        return LoopThread.get().run(call(*args, **kwargs))

    return blocking


create_log = _blocking(admin.create_log)
list_logs = _blocking(admin.list_logs)
log_exists = _blocking(admin.log_exists)
log_info = _blocking(admin.log_info)
log_compression = _blocking(admin.log_compression)
log_settings = _blocking(admin.log_settings)
update_settings = _blocking(admin.update_settings)
rename_log = _blocking(admin.rename_log)
plan_truncation = _blocking(admin.plan_truncation)
truncate_log = _blocking(admin.truncate_log)
seal_log = _blocking(admin.seal_log)
delete_log = _blocking(admin.delete_log)
archive_log = _blocking(admin.archive_log)
table_info = _blocking(admin.table_info)
verify_table = _blocking(admin.verify_table)
rebuild_table = _blocking(admin.rebuild_table)
log_schemas = _blocking(admin.log_schemas)
set_log_schema = _blocking(admin.set_log_schema)
clear_log_schema = _blocking(admin.clear_log_schema)
restore_segments = _blocking(admin.restore_segments)
verify_log = _blocking(admin.verify_log)
audit_namespace = _blocking(admin.audit_namespace)

list_consumers = _blocking(admin.list_consumers)
consumer_info = _blocking(admin.consumer_info)
reset_consumer = _blocking(admin.reset_consumer)
delete_consumer = _blocking(admin.delete_consumer)
slowest_consumer = _blocking(admin.slowest_consumer)


def watch_logs(*, prefix: str = "", existing: bool = True, uri: str | None = None) -> "LogWatch":
    """Return an iterator of logs that are added and removed; see `dlog.aio.admin.watch_logs`."""
    thread = LoopThread.get()
    watch = thread.run(admin.watch_logs(prefix=prefix, existing=existing, uri=uri))
    return LogWatch(watch, thread)


class LogWatch(BlockingHandle[admin.LogWatch]):
    """An iterator without end, and a context manager. Used by one thread at a time."""

    def __init__(self, watch: admin.LogWatch, thread: LoopThread) -> None:
        super().__init__(watch, thread, "watch of logs")
        self._seen: deque[LogChange] = deque()
        """Changes that were read ahead; an interrupted call leaves its own to the next one."""

    @property
    def logs(self) -> tuple[str, ...]:
        """The names at the last look."""
        return self._inner.logs

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LogChange:
        self._check_process()
        if not self._seen:
            self._run(self._look())
        return self._seen.popleft()

    async def _look(self) -> None:
        self._seen.append(await anext(self._inner))
