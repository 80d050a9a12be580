"""One bookie from start to stop: directory, identity, replay, port, service, registration.

Order of the start: the directories are locked; their cookies are checked against the cluster's,
and the start is counted in both; the storage replays wholly; the port is listened on; requests are
served; only then is the bookie registered. A stop goes the other way; at its end the cookies and
the cluster learn that it was clean. Whatever happens to the registration, the bookie continues to
serve: no safety rests on it. A process whose identity was taken over, retired or forgotten ends as
soon as it reads that.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NoReturn

from bookie import metrics
from bookie.collector.collector import Collector
from bookie.collector.store_memory import recall
from bookie.config import BookieConfig
from bookie.disk.port import Directories
from bookie.disk.watch import Reserve
from bookie.errors import BookieFailed, BookieRunning, BookieSuperseded, DirectoryInUse, PortInUse
from bookie.identity.cookie import read_cookie
from bookie.identity.lives import LifeKeeper
from bookie.identity.registration import Registrar
from bookie.identity.restore import honour
from bookie.identity.stamp import Identity, identify, mark_clean, settle_doubt
from bookie.server.authorizer import Authorizer
from bookie.server.limits import descriptor_limit, share_out
from bookie.server.listener import BookieServer, is_free
from bookie.server.loss_resolver import LossResolver
from bookie.server.metadata_lookups import MadeLedgers
from bookie.server.operator import OPERATOR_LIMITS, OperatorService
from bookie.server.quota import QuotaThrottle
from bookie.server.read_only import ReadOnlyKeeper
from bookie.server.service import BookieService
from bookie.storage.config import ENTRY_LOG_BYTES_MAX, StorageConfig, entry_log_bytes_for
from bookie.storage.engine import BookieStorage
from ledger.cluster import open_namespace
from ledger.errors import MetadataError, StorageError
from ledger.feature_level import IDENTITIES
from ledger.feature_level_upgrade import until_level
from ledger.log_events import get_logger
from ledger.manager import LedgerStore
from ledger.metastore import MetadataStore, check_store_there, open_store
from ledger.metering.declaration import Exposed
from ledger.registry import BookieRegistration, find_registration
from ledger.requests import InfoAnswer
from ledger.security.certificates import Security
from ledger.security.settings import TlsMode, takes_of

_ALONE_SESSIONS: Final = 3.0
"""So many session time-outs somebody else's registration may take to vanish."""
_ALONE_POLL_S: Final = 0.2
_CLEAN_S_MAX: Final = 2.0
_log = get_logger(__name__)


async def run_bookie(
    config: BookieConfig,
    *,
    on_ready: Callable[[str, str], None] = lambda _name, _address: None,
    exposed: Exposed | None = None,
    security: Security | None = None,
) -> None:
    """Run a bookie until cancelled, then stop it cleanly; *on_ready* gets name and address, and
    *exposed* its metrics; *security* is what `config.tls` gave, if the caller has it.

    Raises an error of `bookie.errors` or `ledger.errors` if it cannot start, `BookieFailed` if
    its storage fails; then nothing is waited for that the disk may hold up."""
    security = security or await Security.settled(config.tls, serves=True)
    check_store_there(config.uri)
    directories = config.open_directories()
    descriptors = share_out(
        descriptor_limit(),
        directories=len(directories.journals) + len(directories.ledgers),
        files_open_max=config.storage.files_open_max,
    )
    storage = replace(
        config.storage,
        files_open_max=descriptors.files_open_max,
        entry_log_bytes_max=_entry_log_bytes(config, directories),
    )
    config = replace(config, storage=storage)
    directories.lock()
    try:
        given_up = await asyncio.to_thread(Reserve(directories).give_up)
        store = await open_store(
            config.uri,
            session_timeout_s=config.session_timeout_s,
            timeout_s=config.metadata_timeout_s,
            tls=config.tls,
        )
        try:
            exposed = exposed or Exposed()
            exposed.readiness = lambda: metrics.REPLAYING
            ports = _Ports(
                BookieServer(
                    replace(
                        config.clients,
                        connections_max=min(
                            config.clients.connections_max, descriptors.connections_max
                        ),
                    ),
                    security=security,
                ),
                BookieServer(OPERATOR_LIMITS, security=security),
                security,
            )
            await _run(config, directories, store, ports, on_ready, exposed, given_up)
        finally:
            await store.close()
    finally:
        directories.unlock()


@dataclass(frozen=True, slots=True)
class _Ports:
    clients: BookieServer
    operators: BookieServer
    security: Security | None

    def bind(self, config: BookieConfig, port: int | None) -> int:
        """Listen for clients on *port*, unless that is done already, and for operators; return
        the operators' port."""
        if port is not None:
            self.clients.bind(config.host, port)
        return self.operators.bind(config.host, config.operator_port)

    async def guard(
        self,
        config: BookieConfig,
        bookie: str,
        store: MetadataStore,
        ledgers: LedgerStore,
        level: int,
    ) -> None:
        """Let in what is granted, once everybody has to say who he is; at the cluster's *level*
        everybody may have to say which bookie is meant."""
        if level >= IDENTITIES:
            self.clients.refuse_unidentified()
        if config.tls.mode is TlsMode.REQUIRED:
            guard = Authorizer(store, ledgers, bookie=bookie)
            await guard.start()
            self.clients.guard = self.operators.guard = guard
        self.clients.delays = QuotaThrottle(store, ledgers)
        await self.clients.delays.start()

    def guarding(self) -> "list[asyncio.Task[None]]":
        """Begin to keep to the grants and quotas as they change. An end of it would be one of the
        bookie: it would not hear of what is revoked."""
        kept = (self.clients.guard, self.clients.delays)
        return [asyncio.create_task(one.run(), name="guard") for one in kept if one is not None]

    async def start(self, service: BookieService, operator: OperatorService) -> None:
        await self.clients.start(service)
        await self.operators.start(service, operator)

    async def kill(self) -> None:
        await asyncio.gather(self.clients.kill(), self.operators.kill())


async def _run(
    config: BookieConfig,
    directories: Directories,
    store: MetadataStore,
    ports: _Ports,
    on_ready: Callable[[str, str], None],
    exposed: Exposed,
    given_up: frozenset[int],
) -> None:
    try:
        namespace = await open_namespace(store)
        ledgers = LedgerStore(store, namespace.layout)
        name, port, bound = _place(config, directories, ports.clients)
        await ports.guard(config, name, store, ledgers, namespace.held.level)
        address = config.address(port)
        identity = await identify(
            store,
            directories,
            bookie=name,
            instance=namespace.instance,
            address=address,
            until_alone=partial(
                _until_alone, store, name, _ALONE_SESSIONS * config.session_timeout_s
            ),
        )
        storage = await _open_storage(directories, config, identity)
        try:
            if identity.restored is not None:
                await honour(ledgers, storage, directories, identity.restored)
            operator_port = ports.bind(config, None if bound else port)
        except BaseException:
            storage.close()
            raise
        service = BookieService(
            storage,
            InfoAnswer(
                name,
                identity.incarnation,
                namespace.instance,
                read_only=False,
                identity=identity.cookie.cookie,
                life=identity.cookie.life,
            ),
            config.service,
            made=MadeLedgers(ledgers, unmade_max=config.unmade_ledgers_max),
        )
    except BaseException:
        await ports.kill()
        raise
    living = _life(store, identity, storage)
    registrar = Registrar(
        store,
        BookieRegistration(
            name,
            address,
            identity.incarnation,
            config.rack,
            operator_address=config.operator_address(operator_port),
            takes=takes_of(config.tls.mode),
            identity=identity.cookie.cookie,
            life=identity.cookie.life,
            instance=identity.cookie.instance,
        ),
        on_lost=living.look_soon,
    )

    keeper = ReadOnlyKeeper(
        storage,
        directories,
        config.disk_limits,
        given_up=given_up,
        interval_s=config.disk_interval_s,
        on_space=partial(_on_space, service, Reserve(directories)),
        on_change=lambda read_only: registrar.set_read_only(
            read_only=read_only, reason="; ".join(keeper.reasons)
        ),
    )
    collector = Collector(
        storage.ledger_directories,
        ledgers,
        replace(config.collector, log_bytes_max=_entry_log_bytes(config, directories)),
        main=directories.main,
        bookie=name,
        instance=namespace.instance,
        ledger_ids=storage.ledger_ids,
        storage=service,
    )
    collector.heed(
        in_doubt=lambda: storage.doubts,
        may_be_lost=storage.may_have_lost,
        is_orphan=storage.is_orphan,
    )
    operator = OperatorService(
        service, storage, keeper, collector, address=address, security=ports.security
    )
    settler = LossResolver(
        storage,
        ledgers,
        name,
        instance=namespace.instance,
        seen=lambda: recall(directories.main),
        on_change=living.set_limbo,
    )
    tasks: list[asyncio.Task[None]] = [
        asyncio.create_task(living.run(), name="life"),
        *ports.guarding(),
    ]
    try:
        await _look_at_disks(keeper, directories)
        await collector.begin()
        await ports.start(service, operator)
        await registrar.start()
        metrics.expose(exposed, ports.clients, service, storage, keeper, collector, registrar)
        tasks.append(asyncio.create_task(keeper.run(), name="read-only keeper"))
        beside = [
            _beside(collector.run(), "collector"),
            _beside(settler.run(), "settler"),
            _beside(until_level(store, IDENTITIES, ports.clients.refuse_unidentified), "level"),
        ]
        _log.info(
            f"bookie {name} is ready on {address}",
            operator_port=operator_port,
            incarnation=identity.incarnation,
        )
        on_ready(name, address)
        try:
            await _until_failed(name, service, tasks)
        finally:
            for task in beside:
                task.cancel()
    finally:
        for task in tasks:
            task.cancel()
        await operator.close()
        await _stop(name, registrar, ports, service, collector)
        if not service.failure.done():
            await _report_clean(directories, storage, living)
            _log.info(f"bookie {name} has stopped")


async def _until_failed(
    name: str, service: BookieService, tasks: list[asyncio.Task[None]]
) -> NoReturn:
    """Raise why it cannot go on; *tasks* run until they fail."""
    waits: list[asyncio.Future[Any]] = [service.failure, *tasks]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if not service.failure.done():
        for task in tasks:
            if task.done():
                error = task.exception()
                if isinstance(error, BookieSuperseded):
                    service.fail(error)
                task.result()
    failure = service.failure.result()
    if isinstance(failure, BookieSuperseded):
        raise failure
    raise BookieFailed(name, str(failure)) from failure


def _place(
    config: BookieConfig, directories: Directories, server: BookieServer
) -> tuple[str, int, bool]:
    """Return name, port, and whether the port is listened on already.

    Data that was used before keeps its name, and its port if that is still free. The port of a
    first start is taken at once."""
    cookies = [cookie for disk in directories.every() if (cookie := read_cookie(disk)) is not None]
    cookie = cookies[0] if cookies else None
    port = config.port
    if port and not is_free(config.host, port):
        raise PortInUse(config.host, port)
    if not port and cookie is not None:
        port = int(cookie.address.rpartition(":")[2])
        if not is_free(config.host, port):
            _log.warning("port_taken", host=config.host, port=port)
            port = 0
    bound = not port
    if bound:
        port = server.bind(config.host, 0)
    name = config.bookie or (cookie.bookie if cookie is not None else config.new_name())
    return name, port, bound


def _entry_log_bytes(config: BookieConfig, directories: Directories) -> int:
    """Return when an entry log is full; of a disk that cannot be asked nothing is followed."""
    if config.storage.entry_log_bytes_max is not None:
        return config.storage.entry_log_bytes_max
    try:
        return entry_log_bytes_for(disk.usage().total_bytes for disk in directories.ledgers)
    except OSError:
        return ENTRY_LOG_BYTES_MAX


async def _open_storage(
    directories: Directories, config: BookieConfig, identity: Identity
) -> BookieStorage:
    """Replay wholly. A replay cannot be stopped: if it is not waited for any more, the
    directories are unlocked only at its end, as they are written until then."""
    opening = asyncio.ensure_future(
        asyncio.to_thread(_opened_storage, directories, config.storage, identity)
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if opening.exception() is None:
            opening.result().close()
        raise


def _opened_storage(
    directories: Directories, config: StorageConfig, identity: Identity
) -> BookieStorage:
    restored = "" if identity.restored is None else identity.restored.reason
    storage = BookieStorage.open(directories, config, doubt=identity.doubt or "", restored=restored)
    if identity.doubt is not None:  # the storage remembers it from now on
        try:
            settle_doubt(directories)
        except BaseException:
            storage.close()
            raise
    return storage


async def _stop(
    name: str,
    registrar: Registrar,
    ports: "_Ports",
    service: BookieService,
    collector: Collector,
) -> None:
    if service.failure.done():
        failure = service.failure.result()
        await registrar.close(take_back=not isinstance(failure, BookieSuperseded))
        await ports.kill()
        service.abandon()
        return
    await registrar.close()
    await asyncio.gather(ports.clients.stop(), ports.operators.stop())
    await collector.close()
    await service.close()
    if service.failure.done():
        failure = service.failure.result()
        raise BookieFailed(name, str(failure)) from failure


async def _report_clean(
    directories: Directories, storage: BookieStorage, living: LifeKeeper
) -> None:
    """Let copies of the directories pass for them from now on; not needed for a start on them."""
    try:
        directories.lock()
        if mark_clean(directories, living.claim):
            async with asyncio.timeout(_CLEAN_S_MAX):
                await living.stopped(storage.census)
    except (DirectoryInUse, OSError, StorageError, MetadataError) as error:
        _log.warning(
            "clean_stop_not_reported", bookie=living.claim.cookie.bookie, reason=str(error)
        )


async def _until_alone(store: MetadataStore, bookie: str, timeout_s: float) -> None:
    """Wait until nobody is registered as *bookie*. Raises `BookieRunning`, and what the store
    raises."""
    deadline = time.monotonic() + timeout_s
    warned = False
    while (found := await find_registration(store, bookie)) is not None:
        if time.monotonic() > deadline:
            raise BookieRunning(bookie, found.address, timeout_s)
        if not warned:
            _log.warning("waits_for_another", bookie=bookie, address=found.address, s=timeout_s)
            warned = True
        await asyncio.sleep(_ALONE_POLL_S)


async def _look_at_disks(keeper: ReadOnlyKeeper, directories: Directories) -> None:
    keeper.look()
    await asyncio.to_thread(Reserve(directories).keep)


def _on_space(service: BookieService, reserve: Reserve) -> None:
    service.checkpoint_soon()
    asyncio.get_running_loop().run_in_executor(None, reserve.keep)


def _life(store: MetadataStore, identity: Identity, storage: BookieStorage) -> LifeKeeper:
    living = LifeKeeper(store, identity.claim)
    storage.on_census(living.checkpointed)
    living.checkpointed(storage.census)
    return living


def _beside(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report_ended)
    return task


def _report_ended(beside: "asyncio.Task[None]") -> None:
    """Without the collector space is not given back, without the settler a limbo does not end, but
    everything is served: no reason to end."""
    error = None if beside.cancelled() else beside.exception()
    if error is not None:
        _log.error(f"{beside.get_name()}_ended", reason=repr(error))
