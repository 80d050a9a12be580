"""Errors of starting things on this machine.

LogError
|- CallerError
|  `- InvalidCluster     a local cluster cannot be made so
`- LocalError
   |- ClusterRunning      another process runs a cluster in the directory
   |- JavaMissing          no Java runtime that is new enough
   |- ZooKeeperMissing     no ZooKeeper server to start
   `- ChildFailed          a process was started and did not become ready
"""

from collections.abc import Iterable

from ledger.errors import CallerError, LogError


class LocalError(LogError):
    """Something on this machine could not be found or started."""


class JavaMissing(LocalError):
    def __init__(self, version_min: int, tried: Iterable[str]) -> None:
        self.version_min, self.tried = version_min, tuple(tried)
        super().__init__(
            f"no Java {version_min} or newer ({'; '.join(self.tried)}); "
            "run: pip install 'dlog-ledgers[spark]', or install a JDK and set JAVA_HOME"
        )


class ZooKeeperMissing(LocalError):
    def __init__(self) -> None:
        super().__init__(
            "no ZooKeeper to start: its jars come with PySpark. "
            "Run: pip install 'dlog-ledgers[spark]', or use the embedded metadata store "
            "(file:///directory), which needs no server"
        )


class ChildFailed(LocalError):
    retryable = True

    def __init__(self, what: str, reason: str, log_tail: str) -> None:
        said = f". Its last output:\n{log_tail}" if log_tail else ""
        super().__init__(f"{what} did not start: {reason}{said}")
        self.what, self.reason, self.log_tail = what, reason, log_tail


class InvalidCluster(CallerError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"no local cluster: {reason}")
        self.reason = reason


class ClusterRunning(LocalError):
    def __init__(self, directory: str, pid: str) -> None:
        self.directory, self.pid = directory, pid
        by = f" (process {pid})" if pid else ""
        super().__init__(
            f"a cluster runs in {directory} already{by}; use that one, stop it, "
            "or give this one another directory"
        )
