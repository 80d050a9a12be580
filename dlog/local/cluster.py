"""A whole cluster on one machine: metadata store and bookies, for ``dlog up``, demos and tests.

Everything lies in one directory, so that the next start finds the data again:

    cluster.lock        held while a cluster runs here; says by which process
    metadata/           the embedded metadata store (unless ZooKeeper is used)
    zookeeper/          the managed ZooKeeper
    bookie-0/ ...       the data of the bookies
    bookie-0.log ...    what the bookies wrote
    autorecovery.log    what the process of repair wrote, if there is one
    archiver.log        what that of object storage wrote, if there is one
    tls/                with TLS: an authority, and the certificates of all processes

Bookies keep their names over restarts, not their ports: clients find them by the metadata
store. A name ends with the first part of the namespace's random id: `bookie-0-1f3a9c20`. No other
cluster has such names, and commands take `bookie-0` for it. No process started here outlives this
one, however it ends.
"""

import asyncio
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bookie.autorecovery_supervisor import keep_autorecovery
from dlog.config import check_uri, metadata_uri
from dlog.local.bookie_process import BookieKeeper, BookieProcess, name_in
from dlog.local.errors import ChildFailed, ClusterRunning, InvalidCluster
from dlog.local.zookeeper import ManagedZooKeeper
from ledger.cluster import make_namespace
from ledger.errors import MetricsNotServed
from ledger.ids import BookieIdentity
from ledger.metastore import MetadataStore, open_store
from ledger.metering.http_server import address_of, reason_of
from ledger.options import PORT_MAX, variables_of
from ledger.process import make_private
from ledger.registry import BookieDirectory, BookieRegistration
from ledger.security.access import ANYTHING, Grant, Role, Rules
from ledger.security.certificates import Security, own_name
from ledger.security.documents import change_rules
from ledger.security.settings import OFF, TlsMode, TlsSettings

CLIENT: Final = "client"
_HOSTS: Final = ("127.0.0.1", "::1", "localhost")
MANAGED: Final = "managed"
BOOKIES_MAX: Final = 64
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.02
_WATCH_S: Final = 0.25


class LocalCertificates:
    """Made when they are asked for first, in *directory*; the next start finds them."""

    def __init__(self, directory: Path) -> None:
        """Raises `InvalidCluster` if the library is missing."""
        try:
            from dlog.tls import files
        except ModuleNotFoundError as error:
            reason = "TLS needs the library 'cryptography': pip install 'dlog-ledgers[tls]'"
            raise InvalidCluster(reason) from error
        self._directory = directory
        self._ca = files.Pair.of(directory, files.AUTHORITY).cert
        if not self._ca.exists():
            files.init(directory, "dlog up", days=3650)

    def of_client(self) -> TlsSettings:
        return self._of(CLIENT)

    def of_bookie(self, name: str, bookie: str) -> TlsSettings:
        """*name*: of the files."""
        return self._of(name, bookie=bookie)

    def of_zookeeper(self) -> TlsSettings:
        return self._of("zookeeper")

    def _of(self, name: str, *, bookie: str = "") -> TlsSettings:
        from dlog.tls import files
        from dlog.tls.authority import CertificateRequest

        pair = files.Pair.of(self._directory, name)
        if not pair.cert.exists():
            pair.key.unlink(missing_ok=True)  # of a start that was interrupted
            wanted = CertificateRequest(name=name, bookie=bookie, hosts=_HOSTS, days=3650)
            files.issue_to(self._directory, name, wanted)
        return TlsSettings(
            mode=TlsMode.REQUIRED, ca=str(self._ca), cert=str(pair.cert), key=str(pair.key)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBookie:
    """One running bookie, for people to see."""

    name: str
    pid: int
    address: str
    directory: Path
    log_path: Path
    meant: BookieIdentity | None
    """Who has to answer there."""


class LocalCluster:
    """An async context manager: the cluster is up inside, and ended after it.

    *zookeeper* is None for the embedded store, ``"managed"`` for a ZooKeeper of its own, or
    the URI of a metadata store that runs already. Enter it on a thread that lives as long as
    the cluster shall: bookies end with the thread that started them."""

    def __init__(
        self,
        directory: Path | str,
        *,
        bookies: int = 3,
        zookeeper: str | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        bookie_options: Sequence[str] = (),
        autorecovery: bool = False,
        metrics: tuple[str, int] | None = None,
        tls: bool = False,
    ) -> None:
        """*bookie_options*: further options of `dlog bookie start`, for each bookie.
        *autorecovery*: run a process of repair too, which copies what lost bookies held.
        *metrics*: host and first port on which these processes serve their metrics, one after the
        other; with port 0 each has any free one.
        *tls*: all connections have TLS, with certificates of an authority made for the purpose;
        clients need `client_tls`."""
        if not 1 <= bookies <= BOOKIES_MAX:
            raise InvalidCluster(f"{bookies} bookies asked for, 1 to {BOOKIES_MAX} can run here")
        if zookeeper not in (None, MANAGED):
            check_uri(zookeeper)
        self.directory = Path(directory).expanduser().absolute()
        self._count = bookies
        self._zookeeper = zookeeper
        self._bookie_options = bookie_options
        self._autorecovery = autorecovery
        self._tls = tls
        self._certificates: LocalCertificates | None = None
        self._metrics = None if metrics is None else _places(*metrics, bookies + autorecovery)
        self._start_timeout_s = start_timeout_s
        self._uri: str | None = None
        self._instance = ""
        self._processes: list[BookieProcess] = []
        self._registry: BookieDirectory | None = None
        self._stack = AsyncExitStack()

    @property
    def uri(self) -> str:
        """The URI of the namespace; give it to clients as ``DLOG_URI``."""
        assert self._uri is not None, "the cluster is not up"
        return self._uri

    @property
    def client_tls(self) -> TlsSettings:
        """How clients secure their connections to this cluster."""
        return OFF if self._certificates is None else self._certificates.of_client()

    @property
    def environment(self) -> Mapping[str, str]:
        """What clients need in their environment to find the cluster."""
        tls = {} if self._certificates is None else variables_of(self.client_tls)
        return {"DLOG_URI": self.uri, **tls}

    @property
    def processes(self) -> tuple[BookieProcess, ...]:
        return tuple(self._processes)

    def bookies(self) -> list[LocalBookie]:
        """Return the bookies that run now, with the addresses that they last announced: one whose
        session has just ended is announced again in a moment, and serves meanwhile."""
        assert self._registry is not None, "the cluster is not up"
        return [
            LocalBookie(
                name=process.bookie,
                pid=process.pid,
                address=self._registry.address(process.bookie) or "",
                directory=process.directory,
                log_path=process.log_path,
                meant=self._registry.identity(process.bookie),
            )
            for process in self._processes
            if process.running
        ]

    @property
    def metrics(self) -> Mapping[str, str]:
        """Where each process serves its metrics, by its name; empty if none does."""
        names = [process.name for process in self._processes]
        names += ["autorecovery"] if self._autorecovery else []
        places = zip(names, self._metrics or (), strict=False)
        return {name: address_of(*place, tls=self._tls) for name, place in places}

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def kill_bookie(self, index: int) -> None:
        """End bookie *index* with SIGKILL."""
        self._processes[index].kill()

    async def stop_bookie(self, index: int) -> None:
        """End bookie *index* in order."""
        await _end([self._processes[index]])

    async def restart_bookie(self, index: int) -> None:
        """Start bookie *index* on its data, ending it in order first if it runs.

        Returns once it is registered. Raises `ChildFailed`."""
        await self.stop_bookie(index)
        await self._start_bookies([self._processes[index]])

    async def keep_bookies(self, report: Callable[[str], None]) -> None:
        """Start bookies again that die, as `BookieKeeper` says, until cancelled.

        *report* is given a sentence for each end. On the thread that entered the cluster."""
        keepers = [BookieKeeper(process) for process in self._processes]
        while True:
            for keeper in keepers:
                if sentence := keeper.look(time.monotonic()):
                    report(sentence)
            await asyncio.sleep(_WATCH_S)

    async def _start(self) -> None:
        try:
            make_private(self.directory)
            self._stack.enter_context(_locked(self.directory))
        except OSError as error:
            raise InvalidCluster(f"{self.directory} cannot be used: {error.strerror}") from error
        if self._tls:
            self._certificates = LocalCertificates(self.directory / "tls")
        self._uri = await self._metadata()
        store = await open_store(self._uri, tls=self.client_tls)
        self._stack.push_async_callback(store.close)
        self._instance = (await make_namespace(store)).instance
        if self._tls:
            await _grant_everything(store, self.client_tls)
        self._registry = BookieDirectory(store)
        self._stack.push_async_callback(self._registry.close)
        await self._registry.start()
        self._processes = [self._process(index) for index in range(self._count)]
        self._stack.push_async_callback(_end, self._processes)
        await self._start_bookies(self._processes)
        if self._autorecovery:
            log_path = self.directory / "autorecovery.log"
            place = None if self._metrics is None else self._metrics[-1]
            helping = asyncio.ensure_future(
                keep_autorecovery(self.uri, log_path=log_path, metrics=place, tls=self.client_tls)
            )
            self._stack.push_async_callback(_cancelled, helping)

    async def _metadata(self) -> str:
        if self._zookeeper is None:
            return metadata_uri(self.directory)
        if self._zookeeper != MANAGED:
            return self._zookeeper
        certificates = self._certificates
        tls = None if certificates is None else certificates.of_zookeeper()
        server = ManagedZooKeeper(self.directory / "zookeeper", tls=tls)
        self._stack.push_async_callback(server.stop)
        await server.start(timeout_s=self._start_timeout_s)
        return server.uri("/dlog")

    def _process(self, index: int) -> BookieProcess:
        name = f"bookie-{index}"
        directory = self.directory / name
        bookie = name_in(directory) or self._new_bookie(name)
        log_path = self.directory / f"{name}.log"
        options = list(self._bookie_options)
        if self._metrics is not None:
            host, port = self._metrics[index]
            options += ["--metrics-host", host, "--metrics-port", str(port)]
        return BookieProcess(
            name,
            directory,
            bookie=bookie,
            uri=self.uri,
            log_path=log_path,
            options=options,
            tls=None if self._certificates is None else self._certificates.of_bookie(name, bookie),
        )

    def _new_bookie(self, name: str) -> str:
        """Return an id that no other cluster has: one may listen where this one does now."""
        return f"{name}-{self._instance[:8]}"

    async def _start_bookies(self, processes: Iterable[BookieProcess]) -> None:
        """Start *processes* and wait until each is registered again.

        The registration of an earlier life may still be there: only another incarnation
        shows that this one serves."""
        waiting = {process: self._incarnation(process.bookie) for process in processes}
        for process in waiting:
            process.start()
        deadline = time.monotonic() + self._start_timeout_s
        while waiting:
            for process, before in list(waiting.items()):
                if process.exit_code is not None:
                    reason = f"it ended with exit code {process.exit_code}"
                    raise ChildFailed(process.name, reason, process.log_tail())
                if self._incarnation(process.bookie) not in (None, before):
                    del waiting[process]
            if waiting and time.monotonic() > deadline:
                late = next(iter(waiting))
                reason = f"it did not register within {self._start_timeout_s:g} s"
                raise ChildFailed(late.name, reason, late.log_tail())
            await asyncio.sleep(_POLL_S)

    def _incarnation(self, name: str) -> str | None:
        found = self._registration(name)
        return found.incarnation if found else None

    def _registration(self, name: str) -> BookieRegistration | None:
        assert self._registry is not None, "the cluster is not up"
        for registration in self._registry.available():
            if registration.bookie == name:
                return registration
        return None


def _places(host: str, port: int, count: int) -> list[tuple[str, int]]:
    """Return *count* places from *port* on; for 0, of ports that are free now.

    Raises `InvalidCluster`."""
    if port:
        if port + count - 1 > PORT_MAX:
            raise InvalidCluster(f"there are no {count} ports for metrics from {port} on")
        return [(host, port + at) for at in range(count)]
    with ExitStack() as opened:  # all at once, so that no two are the same
        return [(host, opened.enter_context(_bound(host)).getsockname()[1]) for _ in range(count)]


def _bound(host: str) -> socket.socket:
    try:
        return socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise MetricsNotServed(host, 0, reason_of(error)) from error


async def _cancelled(task: "asyncio.Future[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _grant_everything(store: MetadataStore, client: TlsSettings) -> None:
    """Let the client's certificate do everything, if nobody was granted anything yet."""
    who = own_name(Security.of(client))
    roles = (Role.OPERATOR, Role.WRITER)
    ours = Rules(tuple(sorted(Grant(who, role, ANYTHING) for role in roles)))
    await change_rules(store, lambda rules: rules if rules.grants else ours, by="dlog up")


async def _end(processes: Iterable[BookieProcess]) -> None:
    """End *processes*, all at once: in order, and those that do not end so, by force."""
    asked = list(processes)
    for process in asked:
        process.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    try:
        for process in asked:
            await process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in asked:
            process.kill()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory for this process; the lock goes with the process, however it ends."""
    path = directory / "cluster.lock"
    path.touch(mode=0o600)
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ClusterRunning(str(directory), lock.read().strip()) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
