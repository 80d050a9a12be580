"""One bookie from start to stop: directory, identity, replay, port, service, registration.

Order of the start: the directories are locked; their cookies are checked against the cluster's;
the storage replays wholly; the port is listened on; requests are served; only then is the bookie
registered. A stop goes the other way. Whatever happens to the registration, the bookie goes on
serving: no safety rests on it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from bookie.collector.collector import Collector
from bookie.config import BookieConfig
from bookie.cookie import read_cookie
from bookie.descriptors import descriptor_limit, share_out
from bookie.directories import Directories
from bookie.errors import BookieFailed, PortInUse
from bookie.identity import identify
from bookie.operator_service import OperatorService
from bookie.read_only import ReadOnlyKeeper
from bookie.registering import Registrar
from bookie.server import BookieServer, is_free
from bookie.service import BookieService
from bookie.storage import BookieStorage
from ledger.cluster import open_namespace
from ledger.log_events import get_logger
from ledger.manager import LedgerStore
from ledger.metastore import MetadataStore, open_store
from ledger.registry import BookieRegistration
from ledger.requests import InfoAnswer

_log = get_logger(__name__)


async def run_bookie(
    config: BookieConfig, *, on_ready: Callable[[str, str], None] = lambda _name, _address: None
) -> None:
    """Run a bookie until cancelled, then stop it cleanly; *on_ready* gets name and address.

    Raises an error of `bookie.errors` or `ledger.errors` if it cannot start, `BookieFailed` if
    its storage fails; then nothing is waited for that the disk may hold up."""
    directories = config.open_directories()
    descriptors = share_out(
        descriptor_limit(),
        directories=len(directories.journals) + len(directories.ledgers),
        files_open_max=config.storage.files_open_max,
    )
    storage = replace(config.storage, files_open_max=descriptors.files_open_max)
    config = replace(config, storage=storage)
    directories.lock()
    try:
        store = await open_store(
            config.uri,
            session_timeout_s=config.session_timeout_s,
            timeout_s=config.metadata_timeout_s,
        )
        try:
            await _run(config, directories, store, descriptors.connections_max, on_ready)
        finally:
            await store.close()
    finally:
        directories.unlock()


async def _run(
    config: BookieConfig,
    directories: Directories,
    store: MetadataStore,
    connections_max: int,
    on_ready: Callable[[str, str], None],
) -> None:
    namespace = await open_namespace(store)
    server = BookieServer(connections_max=connections_max)
    try:
        name, port, bound = _place(config, directories, server)
        address = config.address(port)
        identity = await identify(
            store, directories, bookie=name, instance=namespace.instance, address=address
        )
        storage = await _open_storage(directories, config)
        try:
            if not bound:
                server.bind(config.host, port)
        except BaseException:
            storage.close()
            raise
        info = InfoAnswer(name, identity.incarnation, namespace.instance, read_only=False)
        service = BookieService(storage, info, config.service)
    except BaseException:
        await server.kill()
        raise
    registration = BookieRegistration(name, address, identity.incarnation, config.rack)
    registrar = Registrar(store, registration)
    keeper = ReadOnlyKeeper(
        storage,
        directories,
        config.disk_limits,
        interval_s=config.disk_interval_s,
        on_space=service.checkpoint_soon,
        on_change=lambda read_only: registrar.set_read_only(read_only=read_only),
    )
    collector = Collector(
        storage.ledger_directories,
        LedgerStore(store, namespace.layout),
        config.collector,
        ledger_ids=storage.ledger_ids,
        delete=service.delete,
    )
    operator = OperatorService(service, storage, keeper, collector, address=address)
    keeping: asyncio.Task[None] | None = None
    collecting: asyncio.Task[None] | None = None
    try:
        keeper.look()
        await server.start(service, operator)
        await registrar.start()
        keeping = asyncio.create_task(keeper.run(), name="read-only keeper")
        collecting = asyncio.create_task(collector.run(), name="collector")
        collecting.add_done_callback(_tell_collector_ended)
        _log.info(f"bookie {name} is ready on {address}", incarnation=identity.incarnation)
        on_ready(name, address)
        await asyncio.wait((service.failure, keeping), return_when=asyncio.FIRST_COMPLETED)
        if not service.failure.done():
            keeping.result()
        failure = service.failure.result()
        raise BookieFailed(name, str(failure)) from failure
    finally:
        for task in (keeping, collecting):
            if task is not None:
                task.cancel()
        await operator.close()
        await _stop(name, registrar, server, service, collector)


def _place(
    config: BookieConfig, directories: Directories, server: BookieServer
) -> tuple[str, int, bool]:
    """Return name, port, and whether the port is listened on already.

    Data that was used before keeps its name, and its port if that is still free. The port of a
    first start is taken at once, as the name may come from it."""
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
    name = config.bookie or (cookie.bookie if cookie is not None else config.address(port))
    return name, port, bound


async def _open_storage(directories: Directories, config: BookieConfig) -> BookieStorage:
    """Replay wholly. A replay cannot be stopped: whoever does not wait for it any more gets the
    directories back only at its end, as they are written until then."""
    opening = asyncio.ensure_future(
        asyncio.to_thread(BookieStorage.open, directories, config.storage)
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if opening.exception() is None:
            opening.result().close()
        raise


async def _stop(
    name: str,
    registrar: Registrar,
    server: BookieServer,
    service: BookieService,
    collector: Collector,
) -> None:
    await registrar.close()
    if service.failure.done():
        await server.kill()
        service.abandon()
        return
    await server.stop()
    await collector.close()
    await service.close()
    if service.failure.done():
        failure = service.failure.result()
        raise BookieFailed(name, str(failure)) from failure
    _log.info(f"bookie {name} has stopped")


def _tell_collector_ended(collecting: "asyncio.Task[None]") -> None:
    """Without it space is not given back, but everything is served: no reason to end."""
    error = None if collecting.cancelled() else collecting.exception()
    if error is not None:
        _log.error("collector_ended", reason=repr(error))
