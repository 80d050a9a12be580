"""Bookies as processes of their own, for tests; each is ended with its `with` block."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bookie.command import IDENTITY_LOST
from ledger.errors import LogError, NoNamespace
from ledger.metastore import check_store_there
from tests.namespaces import make
from tests.waiting import TEST_S

READY = re.compile(r"bookie (\S+) is ready on (\S+)")
START_S_MAX = TEST_S
ROOT = Path(__file__).parents[2]


def own_port() -> int:
    """Return a port of 127.0.0.1 to which a process may come back: nobody has it, and the system
    gives it to nobody, neither to a connection nor to whoever takes any port."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    below = int(given.read_text().split()[0]) if given.exists() else 32768
    for port in random.sample(range(below // 2, below), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a hundred ports are taken")


def _make_namespace(uri: str) -> None:
    try:
        check_store_there(uri)
    except NoNamespace:
        make(uri)
    except LogError:
        pass  # whoever is started says so himself


class BookieProcess:
    def __init__(
        self, uri: str, directory: Path, *options: str, descriptors: int | None = None
    ) -> None:
        """*descriptors*: how many the system lets it have. The namespace is made if a store is not
        there at all."""
        _make_namespace(uri)
        self.log = directory.with_name(f"{directory.name}-{time.monotonic_ns()}.log")
        command = [sys.executable, "-m", "bookie", "--uri", uri, "--dir", str(directory)]
        if not any(option.startswith("--unmade-ledgers") for option in options):
            command.append("--unmade-ledgers=1000")  # tests add to any
        if descriptors is not None:
            limited = f'ulimit -n {descriptors}; exec "$@"'
            command = ["sh", "-c", limited, "sh", *command]
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen([*command, *options], stderr=log)

    def ready(self) -> tuple[str, str]:
        """Wait until it serves; return its name and address."""
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            if found := READY.search(self.output()):
                return found[1], found[2]
            assert self.popen.poll() is None, f"it ended: {self.output()}"
            time.sleep(0.02)
        raise AssertionError(f"it did not start: {self.output()}")

    def refused(self) -> str:
        """Wait until it gives up; return what it said."""
        assert self.popen.wait(START_S_MAX) in (1, IDENTITY_LOST), self.output()
        return self.output()

    def output(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> int:
        """End it cleanly; return the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(START_S_MAX)


class SmallBookie(BookieProcess):
    """See `tests.bookie.small_bookie`."""

    def __init__(self, uri: str, directory: Path, *options: str) -> None:
        _make_namespace(uri)
        self.log = directory.with_name(f"{directory.name}-{time.monotonic_ns()}.log")
        command = [sys.executable, "-m", "tests.bookie.small_bookie", uri, str(directory)]
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen([*command, *options], stderr=log, cwd=ROOT)


@contextmanager
def bookie(
    uri: str, directory: Path, *options: str, descriptors: int | None = None
) -> Iterator[BookieProcess]:
    process = BookieProcess(uri, directory, *options, descriptors=descriptors)
    try:
        yield process
    finally:
        process.kill()


def open_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def peak_rss_bytes(pid: int) -> int:
    """Return the most memory that the process ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found, status
    return 1024 * int(found[1])


def is_alive(pid: int) -> bool:
    """Return whether *pid* runs; one that ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
