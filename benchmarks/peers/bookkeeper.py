"""Apache BookKeeper: three bookies on this machine, each a process, on a ZooKeeper that runs.

They keep their defaults but for their places and ports. DistributedLog's core library is of the
same release and writes to the same bookies.
"""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from kazoo.client import KazooClient

from benchmarks.peers.jars import PeerMissing, fetched
from benchmarks.peers.java import Processes, class_path, executable
from benchmarks.peers.ports import free_ports

VERSION: Final = "4.17.2"
BOOKIES: Final = 3
ARTIFACTS: Final = (
    f"org.apache.bookkeeper:bookkeeper-server:{VERSION}",
    f"org.apache.distributedlog:distributedlog-core:{VERSION}",
)
DEFAULT: Final[Mapping[str, str]] = {}
WHEN_EMPTY: Final = {"journalFlushWhenQueueEmpty": "true"}
"""The journal is synced as soon as nothing else waits, instead of up to 2 ms later."""
# As BookKeeper's own scripts start a bookie and a shell.
_BOOKIE_FLAGS: Final = (
    "-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=10",
    "-XX:+ParallelRefProcEnabled", "-XX:+DisableExplicitGC",
)  # fmt: skip
_SHELL_FLAGS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_SHELL_S: Final = 60.0
_START_S: Final = 60.0
_POLL_S: Final = 0.1
_PLACES: Final = """metadataServiceUri=zk+hierarchical://{zookeeper}{root}
bookiePort={port}
advertisedAddress=127.0.0.1
allowLoopback=true
journalDirectories={directory}/journal
ledgerDirectories={directory}/ledgers
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
"""


def configuration(
    zookeeper: str, root: str, port: int, directory: Path, settings: Mapping[str, str]
) -> str:
    """Return the text of the file that a bookie is started with."""
    places = _PLACES.format(zookeeper=zookeeper, root=root, port=port, directory=directory)
    return places + "".join(f"{name}={value}\n" for name, value in settings.items())


class BookKeeperCluster:
    """Three bookies in *directory* with *settings*, registered at *root* of ZooKeeper; a context
    manager."""

    def __init__(
        self, directory: Path, zookeeper: str, root: str, settings: Mapping[str, str] = DEFAULT
    ) -> None:
        self._directory = directory
        self._zookeeper = zookeeper
        self._settings = settings
        self._processes = Processes()
        self.ledgers = root
        """The path of ledgers in ZooKeeper."""
        self.uri = f"zk+hierarchical://{zookeeper}{root}"
        """What clients call `metadataServiceUri`."""

    @property
    def pids(self) -> list[int]:
        return self._processes.pids

    def __enter__(self) -> Self:
        """Start the bookies. Raises `PeerMissing`. Call it on a thread that stays."""
        self._java = str(executable())
        self._class_path = class_path(fetched(ARTIFACTS))
        try:
            for number, port in enumerate(free_ports(BOOKIES), 1):
                directory = self._directory / f"bookie-{number}"
                directory.mkdir(parents=True)
                file = directory / "bookie.conf"
                text = configuration(self._zookeeper, self.ledgers, port, directory, self._settings)
                file.write_text(text)
                if number == 1:
                    self._shell("initnewcluster", file)
                self._start(directory, file)
            self._await_bookies()
        except BaseException:
            self._processes.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.stop()

    def _start(self, directory: Path, file: Path) -> None:
        command = [self._java, *_BOOKIE_FLAGS, "-cp", self._class_path]
        command += ["org.apache.bookkeeper.server.Main", "--conf", str(file)]
        self._processes.start(command, directory / "bookie.log")

    def _await_bookies(self) -> None:
        deadline = time.monotonic() + _START_S
        zookeeper = KazooClient(self._zookeeper)
        zookeeper.start(_START_S)
        try:
            while not self._registered(zookeeper):
                if any(each.poll() is not None for each in self._processes.running):
                    raise PeerMissing(f"A bookie ended: see bookie.log in {self._directory}")
                if time.monotonic() > deadline:
                    raise PeerMissing(f"BookKeeper did not start within {_START_S:.0f} s")
                time.sleep(_POLL_S)
        finally:
            zookeeper.stop()
            zookeeper.close()

    def _registered(self, zookeeper: KazooClient) -> bool:
        names = zookeeper.get_children(f"{self.ledgers}/available")
        return len(set(names) - {"readonly"}) == BOOKIES

    def _shell(self, command: str, file: Path) -> None:
        shell = [self._java, *_SHELL_FLAGS, "-cp", self._class_path]
        shell += ["org.apache.bookkeeper.bookie.BookieShell", "-conf", str(file), command]
        try:
            done = subprocess.run(
                shell, capture_output=True, text=True, timeout=_SHELL_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise PeerMissing(f"BookKeeper's {command} took over {_SHELL_S:.0f} s") from error
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-600:]
            raise PeerMissing(f"BookKeeper's {command} failed: {said}")
