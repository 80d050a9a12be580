"""Java programs of this benchmark: compiled from the sources beside this file, run, and ended."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers.jars import PeerMissing, cache
from dlog.local.errors import JavaMissing
from dlog.local.java import find_java
from dlog.local.zookeeper import dying_with_parent

SOURCES: Final = Path(__file__).parent / "java"
_COMPILE_S: Final = 120.0


def class_path(jars: Sequence[Path], *more: Path) -> str:
    return ":".join(map(str, [*more, *jars]))


def compiled(main: str, jars: Sequence[Path]) -> Path:
    """Compile *main* and what it uses of the sources; return the directory of its classes.

    What was compiled from the same text is not compiled again. Raises `PeerMissing`."""
    texts = [(SOURCES / f"{name}.java").read_bytes() for name in ("Loops", main)]
    key = hashlib.sha256(b"".join(texts) + class_path(jars).encode()).hexdigest()[:16]
    directory = cache() / "classes" / f"{main}-{key}"
    if directory.exists():
        return directory
    javac = _javac()
    draft = directory.with_name(f"{directory.name}.{os.getpid()}")
    command = [javac, "-Xlint:none", "-d", str(draft), "-cp", class_path(jars)]
    command += ["-sourcepath", str(SOURCES), str(SOURCES / f"{main}.java")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    if done.returncode:
        shutil.rmtree(draft, ignore_errors=True)
        raise PeerMissing(f"{main}.java does not compile: {done.stderr.strip()[:600]}")
    draft.replace(directory)
    return directory


def _javac() -> str:
    home = executable().parent / "javac"
    found = str(home) if os.access(home, os.X_OK) else shutil.which("javac")
    if found is None:
        raise PeerMissing("There is no javac here: the peers' clients need a JDK of 17 or newer")
    return found


def executable() -> Path:
    """Return `java`. Raises `PeerMissing`."""
    try:
        return find_java().executable
    except JavaMissing as error:
        raise PeerMissing(str(error)) from error


class Processes:
    """Child processes that end together, and with the thread that started them."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self.running]

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start *command* with what it says in *log*."""
        with log.open("ab") as said:
            process = subprocess.Popen(
                dying_with_parent(command, os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for the one who started them
            )
        self.running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End *process* as a crash would."""
        process.kill()
        process.wait()
        self.running.remove(process)

    def stop(self) -> None:
        """Kill all. What they wrote is thrown away: nothing is to be brought to an end."""
        for each in self.running:
            each.kill()
        for each in self.running:
            each.wait()
        self.running.clear()
