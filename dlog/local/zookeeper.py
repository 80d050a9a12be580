"""A standalone ZooKeeper server out of PySpark's jars, as a child process.

For `dlog up --zookeeper managed`, tests and demos: one server, no authentication, loopback
only. It ends with the process that started it, however that ends (Linux). Its data stay in its
directory.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final, Self

from dlog.local.errors import ChildFailed, ZooKeeperMissing
from dlog.local.java import find_java
from ledger.process import CHILD_UMASK, make_private
from ledger.security.certificates import Security
from ledger.security.settings import TlsSettings

# Runs in the child before the program itself: asks the kernel for SIGKILL when the parent
# ends, then becomes the program (same pid). Done so, and not in a preexec_fn, because that
# would run Python in a forked copy of a process with threads.
_PRELUDE: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
_JARS: Final = (
    "zookeeper-3*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java*.jar",
    "netty-handler-4*.jar",
    "netty-transport-4*.jar",
    "netty-common-4*.jar",
    "netty-buffer-4*.jar",
)
_TLS_JARS: Final = (
    "netty-codec-*.jar",
    "netty-resolver-4*.jar",
    "netty-transport-classes-epoll-4*.jar",
    "netty-transport-native-unix-common-4*.jar",
    "netty-tcnative-classes-*.jar",
)
_KEY_STORE: Final = "server.pem"
# 0.33 s to start and 53 MB, against 0.9 s and 116 MB with Java's defaults.
_JAVA_FLAGS: Final = (
    "-Xmx128m",
    "-Xms16m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Dzookeeper.preAllocSize=4096",
)
_TICK_MS: Final = 500
"""The shortest session lasts two of them."""
_SESSION_MS_MAX: Final = 300_000
"""What `session_timeout_s` may be; the server's own bound of 20 ticks would cut it in silence."""
_STOP_TIMEOUT_S: Final = 5.0
_ANSWER_S: Final = 2.0
_PORT_ATTEMPTS_MAX: Final = 3


def dying_with_parent(command: Sequence[str], parent_pid: int) -> list[str]:
    """Return *command* wrapped so that it is killed when *parent_pid* ends.

    The kernel means the parent's *thread*: start such a child from a thread that lives as
    long as the child shall (not from a pool). Elsewhere than on Linux, *command* itself."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _PRELUDE, str(parent_pid), *command]


class ManagedZooKeeper:
    """One server in *directory*. With *port* 0 a free one is taken at each start.

    A subclass may give it an address on which others than this machine's programs reach it,
    and lines that make it one of several (`tests/integration/chaos/ensemble.py`)."""

    host = "127.0.0.1"

    def __init__(self, directory: Path, *, port: int = 0, tls: TlsSettings | None = None) -> None:
        """With *tls* it takes TLS only, and demands certificates."""
        self._tls = tls
        self.directory = directory
        self.port = port
        self._any_port = port == 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"{self.host}:{self.port}"

    def uri(self, root: str = "") -> str:
        """Return the URI of the namespace at *root* (``/name``)."""
        return f"zk://{self.hosts}{root}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, *, timeout_s: float = 30.0) -> Self:
        """Start the server and return once it serves.

        Raises `JavaMissing`, `ZooKeeperMissing`, `ChildFailed`. Call it on a thread that
        lives as long as the server shall (the event loop's own does)."""
        assert not self.running, "already started"
        class_path = _class_path(tls=self._tls is not None)
        java = await asyncio.to_thread(find_java)
        make_private(self.directory)
        self._put_key_store()
        command = [str(java.executable), *_JAVA_FLAGS, "-cp", class_path]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"]
        deadline = time.monotonic() + timeout_s
        for attempt in range(1, _PORT_ATTEMPTS_MAX + 1):
            if self._any_port:
                self.port = _free_port()
            try:
                await self._start_once(command, deadline, timeout_s)
                break
            except ChildFailed:
                # Between our looking for a free port and its use somebody else may take it.
                if not self._any_port or attempt == _PORT_ATTEMPTS_MAX:
                    raise
        return self

    async def stop(self) -> None:
        """Stop the server. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, _STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    def kill(self) -> None:
        """Kill the server as a crash would; `start` brings it back with its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def mode(self) -> str | None:
        """Return what the server says it is: standalone, leader, follower; None: it does not serve.

        It is asked `srvr`: a server that answers `ruok` may not yet serve."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                context = None if self._tls is None else Security(self._tls).client()
                reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context)
                try:
                    writer.write(b"srvr")
                    answer = await reader.read()
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError):
            return None
        modes = [line for line in answer.decode().splitlines() if line.startswith("Mode: ")]
        return modes[0].removeprefix("Mode: ") if modes else None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start_once(self, command: list[str], deadline: float, timeout_s: float) -> None:
        if not self._port_is_free():  # else another server there would seem to be ours
            raise ChildFailed("ZooKeeper", f"port {self.port} is in use", "")
        configuration = self.directory / "zoo.cfg"
        configuration.touch(mode=0o600)
        configuration.write_text(self._configuration())
        log_path = self.directory / "zookeeper.log"
        log_path.touch(mode=0o600)
        with log_path.open("wb") as log:
            self._process = self._spawn(command, log)
        ready: str | None = None
        try:
            while not (ready := await self.mode()):
                if self._process.poll() is not None:
                    reason = f"it ended with exit code {self._process.returncode}"
                    raise ChildFailed("ZooKeeper", reason, _tail(log_path))
                if time.monotonic() > deadline:
                    reason = f"it did not serve within {timeout_s:g} s"
                    raise ChildFailed("ZooKeeper", reason, _tail(log_path))
                await asyncio.sleep(0.02)
        finally:
            if not ready:
                self.kill()

    def _port_is_free(self) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            try:
                probe.bind((self.host, self.port))
            except OSError:
                return False
            return True

    def _spawn(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - a command of our own making
            dying_with_parent(command, os.getpid()),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C is ours to handle
            umask=CHILD_UMASK,
        )

    def _put_key_store(self) -> None:
        """Write certificate and key into one file, as ZooKeeper wants them."""
        if self._tls is None:
            return
        store = self.directory / _KEY_STORE
        store.touch(mode=0o600)
        parts = Path(self._tls.cert).read_bytes(), Path(self._tls.key).read_bytes()
        store.write_bytes(b"".join(parts))

    def _configuration(self) -> str:
        listening: tuple[str, ...] = (
            f"clientPort={self.port}",
            f"clientPortAddress={self.host}",
        )
        if self._tls is not None:
            listening = (
                f"secureClientPort={self.port}",
                f"secureClientPortAddress={self.host}",
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"ssl.keyStore.location={_KEY_STORE}",
                f"ssl.trustStore.location={self._tls.ca}",
                "ssl.clientAuth=need",
                "ssl.protocol=TLSv1.3",
                "ssl.enabledProtocols=TLSv1.3,TLSv1.2",
            )
        lines = (
            f"tickTime={_TICK_MS}",
            "dataDir=data",
            *listening,
            f"maxSessionTimeout={_SESSION_MS_MAX}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        )
        return "\n".join(lines) + "\n"


def _class_path(*, tls: bool = False) -> str:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperMissing
    directory = Path(spec.origin).parent / "jars"
    patterns = (*_JARS, *_TLS_JARS) if tls else _JARS
    jars = [jar for pattern in patterns for jar in sorted(directory.glob(pattern))]
    if not any(jar.name.startswith("zookeeper-3") for jar in jars):
        raise ZooKeeperMissing
    return os.pathsep.join(map(str, jars))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:]
