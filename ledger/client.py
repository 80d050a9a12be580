"""The face of the ledger layer: create, open, recover, delete and list ledgers."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Self

from ledger.cluster import open_namespace
from ledger.entry import Digest, access_key, mac_key
from ledger.environment import Credentials, Environment, repair_credentials
from ledger.errors import TransportMismatch, WrongPassword
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.log_events import now_ms
from ledger.manager import LedgerStore
from ledger.mark import written_without
from ledger.metadata import SECRET_BYTES, Fragment, LedgerMetadata, LedgerState
from ledger.metastore import check_store_there, open_store
from ledger.metastore.port import MetadataStore
from ledger.protocol.answers import Found, verified
from ledger.protocol.placement import (
    PlacementPolicy,
    Quarantine,
    QuarantineConfig,
    RackAwarePlacement,
)
from ledger.protocol.writer import LEAVE_GONE_S, WriterConfig
from ledger.quorum import Quorum
from ledger.reader import LedgerReader
from ledger.recovery import recover, recover_without_password
from ledger.registry import BookieDirectory
from ledger.repair_marks import RepairHints, mark_ledger
from ledger.requests import ReadQuery
from ledger.security.certificates import Security, own_names
from ledger.security.settings import OFF, TlsMode, TlsSettings, is_secured
from ledger.transport.sockets import SocketTransport
from ledger.values import duration_s
from ledger.writer import PENDING_BYTES_MAX, LedgerWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Durations may be text with a unit, as "10s". Raises `InvalidValue`."""

    session_timeout_s: float = 10.0
    """How long the ephemerals of this client outlive it if it stops; see `open_store`."""
    metadata_timeout_s: float = 10.0
    """How long one call to the metadata store may take."""
    bookie_timeout_s: float = 5.0
    """How long a bookie may take to answer before it counts as unreachable. To be connected to it
    has 2 s, or two fifths of this if that is longer."""
    pending_bytes_max: int = 64 * 1024 * 1024
    """How much a writer holds that is not confirmed; see `LedgerWriter.ready`."""
    placement: PlacementPolicy = field(default_factory=RackAwarePlacement)
    """Which bookies a new ledger gets, and which replace those that fail."""
    quarantine: QuarantineConfig = field(default_factory=QuarantineConfig)
    """When bookies that failed are picked again."""
    delay_ensemble_change: bool = False
    """See `ledger.protocol.writer.WriterConfig`."""
    tls: TlsSettings = OFF
    """How connections to bookies, and to ZooKeeper, are secured."""
    leave_gone_s: float = LEAVE_GONE_S
    """How long a bookie may be gone from the registry before writers replace it, if there is
    another one; failures of requests are met at once."""

    def __post_init__(self) -> None:
        for name in ("session_timeout_s", "metadata_timeout_s", "bookie_timeout_s", "leave_gone_s"):
            least = 0.0 if name == "leave_gone_s" else 0.001
            seconds = duration_s(getattr(self, name), name, least=least)
            object.__setattr__(self, name, seconds)
        assert 0 < self.pending_bytes_max <= PENDING_BYTES_MAX, "more ids than bookies take"


class LedgerClient:
    """One process's way to the ledgers of a namespace. Made by `connect`; close it."""

    def __init__(
        self,
        store: MetadataStore,
        environment: Environment,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self.store = store
        self.ledgers: LedgerStore = environment.ledgers
        self.bookies: BookieDirectory = environment.bookies
        self._environment = environment
        self._close = close

    @classmethod
    async def connect(cls, uri: str | MetadataStore, config: ClientConfig | None = None) -> Self:
        """Connect to the namespace at *uri*, which must be there.

        Raises `InvalidUri`, `MetadataUnavailable`, `NamespaceMismatch`, `CertificateUnusable`, and
        `TransportMismatch` if no bookie that is there can be spoken to: it takes TLS only, and
        *config* says nothing of TLS, or the other way round; and `NoNamespace`: one is made by
        `dlog init`, or `ledger.cluster.make_namespace`."""
        config = config or ClientConfig()
        security = await Security.settled(config.tls)
        owns_store = isinstance(uri, str)
        if isinstance(uri, str):
            check_store_there(uri)
            store = await open_store(
                uri,
                session_timeout_s=config.session_timeout_s,
                timeout_s=config.metadata_timeout_s,
                tls=config.tls,
            )
        else:
            store = uri
        try:
            namespace = await open_namespace(store)
            bookies = BookieDirectory(store)
            await bookies.start()
            try:
                _check_common_transport(bookies, config.tls.mode)
            except TransportMismatch:
                await bookies.close()
                raise
        except BaseException:
            if owns_store:
                await store.close()
            raise
        transport = SocketTransport(
            bookies.address,
            timeout_s=config.bookie_timeout_s,
            security=security,
            takes=bookies.takes,
            meant=bookies.identity,
        )
        bookies.on_change(transport.check_identities)
        environment = Environment(
            uri=store.uri,
            ledgers=LedgerStore(store, namespace.layout),
            bookies=bookies,
            transport=transport,
            random=Random(secrets.randbits(64)),  # noqa: S311 - spreads load, hides nothing
            pending_bytes_max=config.pending_bytes_max,
            writing=WriterConfig(
                delay_ensemble_change=config.delay_ensemble_change, leave_gone_s=config.leave_gone_s
            ),
            placement=config.placement,
            quarantine=Quarantine(config.quarantine),
            security=security,
        )
        suspicions = RepairHints(store)
        environment.suspect = suspicions.heard
        environment.doubt = suspicions.doubted

        async def close() -> None:
            await transport.close()
            await suspicions.close()
            await bookies.close()
            if owns_store:
                await store.close()

        return cls(store, environment, close)

    def shared(self, close: Callable[[], Awaitable[None]]) -> Self:
        """Return a client of the same session and connections, which *close* lets go."""
        return type(self)(self.store, self._environment, close)

    async def create(
        self,
        quorum: Quorum | None = None,
        *,
        password: bytes = b"",
        digest: Digest = Digest.CRC32C,
        custom: Mapping[str, bytes] | None = None,
        degraded_writes: bool = False,
    ) -> LedgerWriter:
        """Create a ledger and return its only writer.

        Without a *password* a random secret takes its place: it is kept in the metadata alone, so
        the ledger is for whoever may read those. They are durable before the first entry is sent
        (rule 2). With *degraded_writes* the ensemble may name bookies that are away, if there are
        too few others and those that are there suffice to acknowledge entries and to recover
        them; then the ledger is marked for repair before its first entry. Raises
        `NotEnoughBookies`, `MetadataUnavailable`."""
        quorum = quorum or Quorum()
        ensemble = self._environment.ensemble(quorum)
        away: tuple[BookieId, ...] = ()
        if ensemble is None and degraded_writes:
            ensemble, away = await self._degraded_ensemble(quorum)
        if ensemble is None:
            raise self.bookies.shortage(quorum.ensemble)
        secret = b"" if password else secrets.token_bytes(SECRET_BYTES)
        metadata = LedgerMetadata(
            quorum=quorum,
            fragments=(Fragment(EntryId(0), ensemble),),
            digest=digest,
            access_key=access_key(password or secret),
            secret=secret,
            custom=dict(custom or {}),
            creation_token=secrets.token_bytes(16),
            created_ms=now_ms(),
        )
        ledger_id = await self.ledgers.create(metadata)
        if away:
            await mark_ledger(self.store, ledger_id, written_without(away, EntryId(0), now_ms()))
        credentials = self._credentials(ledger_id, metadata, password)
        return LedgerWriter(self._environment, credentials, metadata, 0)

    async def _degraded_ensemble(
        self, quorum: Quorum
    ) -> tuple[tuple[BookieId, ...] | None, tuple[BookieId, ...]]:
        """Return the ensemble of a new ledger, and who of it is away."""
        await self.bookies.look_again()  # who is there, and may be named, is not what it was
        ensemble = self._environment.ensemble(quorum)
        if ensemble is None:
            ensemble = self._environment.degraded_ensemble(quorum)
        there = self._environment.writable()
        return ensemble, tuple(bookie for bookie in ensemble or () if bookie not in there)

    async def open(self, ledger_id: LedgerId, *, password: bytes = b"") -> LedgerReader:
        """Open for reading all of it: fences and recovers the ledger unless it is CLOSED.

        A living writer loses it. Raises as `recover`."""
        metadata = await self.recover(ledger_id, password=password)
        credentials = self._credentials(ledger_id, metadata, password)
        return LedgerReader(self._environment, credentials, metadata)

    async def open_no_recovery(self, ledger_id: LedgerId, *, password: bytes = b"") -> LedgerReader:
        """Open for reading what is confirmed, beside a living writer.

        Raises `NoSuchLedger`, `WrongPassword`, `MetadataUnavailable`."""
        metadata, _ = await self.ledgers.read(ledger_id)
        credentials = self._credentials(ledger_id, metadata, password)
        return LedgerReader(self._environment, credentials, metadata)

    async def recover(self, ledger_id: LedgerId, *, password: bytes = b"") -> LedgerMetadata:
        """Make sure that the ledger is CLOSED; return its final metadata.

        Raises `NoSuchLedger`, `WrongPassword`, `RecoveryFailed` (retry later),
        `MetadataUnavailable`."""
        metadata, version = await self.ledgers.read(ledger_id)
        credentials = self._credentials(ledger_id, metadata, password)
        if metadata.state is LedgerState.CLOSED:
            return metadata
        return await recover(self._environment, credentials, metadata, version)

    async def recover_without_password(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Do what `recover` does, for whoever repairs the ledger and does not know its password.

        If the ledger has one, entries are checked for damage and not for forgery: whoever has its
        access key could make the end one that its readers refuse to read (`verify_whole`). Raises
        `NoSuchLedger`, `RecoveryFailed` (retry later), `KeyDiffers`, `MetadataUnavailable`."""
        return await recover_without_password(self._environment, ledger_id)

    async def delete(self, ledger_id: LedgerId) -> None:
        """Delete the ledger; bookies free its space in their own time.

        Deleting one that does not exist is no error: nothing is left to do."""
        await self.ledgers.delete(ledger_id)

    async def describe(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return the ledger's metadata as it is now. Raises `NoSuchLedger`, `DamagedMetadata`."""
        metadata, _ = await self.ledgers.read(ledger_id, fresh=True)
        return metadata

    async def read_replica(
        self,
        ledger_id: LedgerId,
        bookie: BookieId,
        first: int,
        last: int,
        *,
        metadata: LedgerMetadata | None = None,
        password: bytes = b"",
        bytes_max: int = 1 << 20,
    ) -> Found:
        """Return what one bookie has of the entries first..last, verified: to check replicas.

        Confirmed or not, and whether the bookie should have them or not. About *bytes_max* at
        most: `Found.considered` and `Found.damaged` say where to continue. Fences nothing and asks
        nobody else; no answer is the status UNREACHABLE. *metadata*, as `describe` gives it,
        spares reading it again. Raises `NoSuchLedger`,
        `WrongPassword`, `MetadataUnavailable`."""
        if metadata is None:
            metadata, _ = await self.ledgers.read(ledger_id)
        credentials = self._credentials(ledger_id, metadata, password)
        query = ReadQuery(ledger_id, credentials.key, first, last, bytes_max=bytes_max)
        answer = await self._environment.transport.read(bookie, query)
        return verified(answer, ledger_id, credentials.checks)

    @property
    def identities(self) -> tuple[str, ...]:
        """All that bookies may know this process by."""
        return own_names(self.security)

    @property
    def security(self) -> Security | None:
        """What connections of this process are secured with; None: nothing."""
        return self._environment.security

    @property
    def level(self) -> int:
        """The feature level of the cluster: which formats may be written."""
        return self.bookies.level

    @property
    def environment(self) -> Environment:
        """What all handles of this client share, for those who repair ledgers."""
        return self._environment

    def list(self) -> AsyncIterator[LedgerId]:
        """Yield the ids of all ledgers of the namespace."""
        return self.ledgers.list()

    async def close(self) -> None:
        """Close connections; handles made by this client are of no use afterwards."""
        await self._close()

    def credentials(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, password: bytes
    ) -> Credentials:
        """Return what *password* gives; without one, what the metadata give to whoever repairs the
        ledger. Raises `WrongPassword`."""
        if not password:
            return repair_credentials(ledger_id, metadata)
        return self._credentials(ledger_id, metadata, password)

    def _credentials(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, password: bytes
    ) -> Credentials:
        # Without either: a ledger from before there were secrets.
        password = password or metadata.secret
        key = access_key(password)
        if key != metadata.access_key:
            raise WrongPassword(ledger_id)
        mac = mac_key(password) if metadata.digest is Digest.HMAC_SHA256 else None
        return Credentials(ledger_id, key, mac)


def _check_common_transport(bookies: BookieDirectory, mode: TlsMode) -> None:
    """Raise `TransportMismatch` if there are bookies, and none that a client of *mode* may use."""
    error: TransportMismatch | None = None
    for found in bookies.available():
        try:
            is_secured(mode, found.takes, name=found.bookie)
        except TransportMismatch as mismatch:
            error = error or mismatch
        else:
            return
    if error is not None:
        raise error
