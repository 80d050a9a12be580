"""Writers, readers and helpers as processes that are told things, killed, stopped and cut off."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from dlog.local.bookie_process import BookieProcess
from dlog.local.cluster import LocalCluster
from ledger.options import variables_of
from ledger.security.settings import OFF, TlsSettings
from tests.integration.chaos.certificates import Certificates
from tests.integration.chaos.places import Place, python

ROOT: Final = Path(__file__).parents[3]
_LINE_BYTES_MAX: Final = 1 << 24

Event = dict[str, Any]
Hear = Callable[["Member", Event], None]


class Member:
    """A writer, a reader or a helper; started again after each end, it is another life of it."""

    def __init__(
        self,
        name: str,
        place: Place,
        directory: Path,
        hear: Hear,
        tls: TlsSettings = OFF,
        launch: Sequence[str] = (),
    ) -> None:
        """*launch*: the module that runs its module, with its arguments; empty: none."""
        self.name = name
        self._launch = launch
        self.place = place
        self.lives = 0
        self._tls = tls
        self._log = directory / f"{name}.log"
        self._hear = hear
        self._killed = False
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def life(self) -> str:
        return f"{self.name}.{self.lives}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def ended_by_itself(self) -> bool:
        return self.lives > 0 and not self._killed and not self.running

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    async def start(self, module: str, *arguments: str) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.place.command(python(*self._launch, module, *arguments)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **variables_of(self._tls)},
                start_new_session=True,
                limit=_LINE_BYTES_MAX,
            )
        self.lives += 1
        self._killed = False
        self._listening = asyncio.create_task(self._listen(self._process))

    def tell(self, line: str) -> None:
        if self.running:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self.running:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill it, and hear what it had said."""
        if self._process is not None and self._listening is not None:
            self._killed = True
            self.signal(signal.SIGKILL)
            await self._process.wait()
            await self._listening

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # else it was killed in the middle of a word
                self._hear(self, json.loads(line))

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class Bookie(BookieProcess):
    """A bookie in a place of its own. It dies with us also while it is stopped."""

    place = Place("")
    launch: Sequence[str] = ()
    """As of a `Member`."""

    def _command(self) -> list[str]:
        command = [each for each in super()._command() if each != "--die-with-parent"]
        module = command.index("bookie")
        command[module:module] = self.launch
        command[command.index("--host") + 1] = self.place.host
        return self.place.command(command)


class Cluster(LocalCluster):
    """The bookies, each in one of *places*, on a metadata store that runs already."""

    def __init__(
        self,
        directory: Path,
        places: list[Place],
        uri: str | None,
        certificates: Certificates | None = None,
        launch: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> None:
        """*launch* says by what the bookie of a name is run."""
        super().__init__(directory, bookies=len(places), zookeeper=uri)
        self._launch = launch
        self._made = certificates
        self.places = places

    async def replace_bookie(self, index: int, name: str) -> None:
        """Start a new, empty bookie called *name* in the place of one that has ended."""
        assert not self._processes[index].running
        self._processes[index] = self._named(name, self.places[index])
        await self._start_bookies([self._processes[index]])

    async def add_bookie(self, name: str, place: Place) -> None:
        """Start one more bookie, called *name*, in *place*."""
        self.places.append(place)
        self._processes.append(self._named(name, place))
        await self._start_bookies(self._processes[-1:])

    async def drop_bookie(self, index: int) -> None:
        """End a bookie that holds nothing any more, for good."""
        await self.stop_bookie(index)
        del self._processes[index], self.places[index]

    def _process(self, index: int) -> BookieProcess:
        return self._named(f"bookie-{index}", self.places[index])

    def _named(self, name: str, place: Place) -> BookieProcess:
        log_path = self.directory / f"{name}.log"
        made = self._made
        tls = None if made is None else made.of(name, bookie=True, host=place.host)
        process = Bookie(
            name,
            self.directory / name,
            bookie=name,
            uri=self.uri,
            log_path=log_path,
            tls=tls,
        )
        process.place, process.launch = place, self._launch(name)
        return process
