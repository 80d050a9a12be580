"""Processes of one release or the other, in one cluster. Each can be asked to end, and is killed
with whoever forgets it."""

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.upgrade.releases import Release
from tests.waiting import PATIENCE_S, until

APPLICATION: Final = Path(__file__).with_name("application.py")


class Process:
    """A process whose output goes to a file."""

    def __init__(self, release: Release, uri: str, name: str, directory: Path) -> None:
        self.release, self.name = release, name
        self._uri = uri
        self._said = directory / f"{name}.out"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> Self:
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                self.release.command(*words),
                env=self.release.environment(self._uri),
                cwd=self._said.parent,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        return self

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def tell(self, order: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n".encode())
        self._process.stdin.flush()

    def terminate(self) -> None:
        assert self._process is not None
        self._process.terminate()

    async def ended(self, code: int = 0) -> None:
        """Wait for its end, which must be with *code*."""
        await until(
            lambda: self.exit_code is not None, f"{self.name} ends", timeout_s=2 * PATIENCE_S
        )
        assert self.exit_code == code, f"{self.name} of {self.release.name}: {self.said[-3000:]}"

    def check(self) -> None:
        """Fail if it does not run any more."""
        assert self.exit_code is None, f"{self.name}: {self.said[-3000:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()


class Application(Process):
    """One of `tests.upgrade.application`."""

    def write(self, log: str, first: int = 0) -> Self:
        return self.start("python", "-P", str(APPLICATION), "write", log, str(first))

    def read(self, log: str) -> Self:
        return self.start("python", "-P", str(APPLICATION), "read", log)

    @property
    def at(self) -> int:
        """How far it says that it is."""
        told = [line.split()[1] for line in self.said.splitlines() if line[:3] in ("at ", "don")]
        return int(told[-1]) if told and told[-1].isdigit() else 0

    async def done(self, order: str | None = None) -> int:
        """Tell it to end with *order*, or wait until it does; return how far it came."""
        if order is not None:
            self.tell(order)
        await self.ended()
        return self.at


class Bookie(Process):
    def serve(self, bookie: str, directory: Path) -> Self:
        where = ["--dir", str(directory), "--uri", self._uri, "--id", bookie]
        own = ["--host", "127.0.0.1", "--port", "0", "--die-with-parent"]
        return self.start("python", "-P", "-m", "bookie", *where, *own)
