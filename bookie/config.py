"""The configuration of one bookie process: where it keeps its data, where it listens, who it is."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import Final

from bookie.collector.plan import CollectorConfig
from bookie.disk.port import Directories, Disk, RealDisk
from bookie.disk.watch import DiskLimits
from bookie.errors import (
    AddressUnusable,
    DirectoryGivenTwice,
    DirectoryUnusable,
    InvalidBookieName,
    InvalidSetting,
)
from bookie.server.limits import ClientLimits, ServiceConfig
from bookie.storage.config import StorageConfig
from ledger.security.settings import OFF, TlsSettings

_ADVERTISED: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, never bound by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    uri: str = field(repr=False)
    """Namespace of the cluster. Its options can hold a password."""
    directory: Path
    """The main directory: where the bookie's cookie is looked for; made if it is not there."""
    journal_directories: tuple[Path, ...] = ()
    """Each holds one journal. Default: the main directory does."""
    ledger_directories: tuple[Path, ...] = ()
    """Each holds entry logs and index of its share of the ledgers. Default: as above."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: the port of the last start on this directory, at first any free one."""
    operator_port: int = 0
    """Where operators ask and order; 0: any free one."""
    advertise: str = ""
    """Host that clients connect to; needed if *host* is a wildcard. Default: *host*."""
    bookie: str | None = None
    """Name for the life of the data. Default: the name in the directory, at first a new one."""
    bookie_prefix: str = ""
    """How a new name begins; a random part follows. Default: the host that clients connect to."""
    rack: str = ""
    session_timeout_s: float = 10.0
    """After a crash, clients may be sent here for so long."""
    metadata_timeout_s: float = 10.0
    tls: TlsSettings = OFF
    """Who may connect: see docs/security.md."""
    unmade_ledgers_max: int = 0
    """So many ledgers are taken although the metadata store does not know them; for tests."""
    clients: ClientLimits = field(default_factory=ClientLimits)
    disk_limits: DiskLimits = field(default_factory=DiskLimits)
    disk_interval_s: float = 0.5
    """So often the disks are asked how full they are."""
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    service: ServiceConfig = field(default_factory=ServiceConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        for name in ("port", "operator_port"):
            if not 0 <= (port := getattr(self, name)) <= 65535:
                raise InvalidSetting(name, port, "a port is a number from 0 to 65535")
        if self.port and self.port == self.operator_port:
            raise InvalidSetting("operator_port", self.port, "clients have that port")
        if self.unmade_ledgers_max < 0:
            raise InvalidSetting(
                "unmade_ledgers_max", self.unmade_ledgers_max, "give the number of ledgers, or 0"
            )
        if self.bookie and self.bookie_prefix:
            raise InvalidBookieName(f"{self.bookie_prefix}... and {self.bookie}")
        if self.host in WILDCARDS and not self.advertise:
            raise AddressUnusable(
                self.host, self.port, "clients cannot use a wildcard; say what to advertise"
            )
        self.advertised()

    def address(self, port: int) -> str:
        """Return what clients connect to when *port* is listened on."""
        host, advertised_port = self.advertised()
        return _address(host, advertised_port or port)

    def operator_address(self, port: int) -> str:
        """Return what operators connect to when *port* is listened on."""
        return _address(self.advertised()[0], port)

    def advertised(self) -> tuple[str, int]:
        """Return the host that others connect to, and the port for clients; 0: the one that is
        listened on. Raises `InvalidSetting`."""
        given = self.advertise
        if not given or _is_ipv6(given):
            return given or self.host, 0
        found = _ADVERTISED.fullmatch(given)
        if found is None or not (found["name"] or _is_ipv6(found["ipv6"])):
            raise InvalidSetting(
                "advertise",
                given,
                "give a host or an address, with a port if clients reach it at another one than it "
                "listens on: app-1, 10.0.0.5:13181, [::1]:3181",
            )
        port = int(found["port"] or 0)
        if found["port"] and not 0 < port <= 65535:
            raise InvalidSetting("advertise", given, "a port is a number from 1 to 65535")
        return found["name"] or found["ipv6"], port

    def new_name(self) -> str:
        """Return a name that no bookie ever had: names of lost data never come back."""
        return f"{self.bookie_prefix or self.advertised()[0]}-{secrets.token_hex(4)}"

    def open_directories(self) -> Directories:
        """Return the directories, made if they are not there.

        Raises `DirectoryUnusable`, `DirectoryGivenTwice`."""
        disks: dict[Path, Disk] = {}

        def disk_at(path: Path) -> Disk:
            try:
                disk = RealDisk(path)
                return disks.setdefault(disk.root.resolve(strict=True), disk)
            except OSError as error:
                raise DirectoryUnusable(str(path), error.strerror or str(error)) from error

        def disks_at(paths: Sequence[Path], role: str) -> tuple[Disk, ...]:
            found = tuple(disk_at(path) for path in paths or (self.directory,))
            for at, disk in enumerate(found):
                if disk in found[:at]:
                    raise DirectoryGivenTwice(str(paths[at]), role)
            return found

        main = disk_at(self.directory)
        return Directories(
            main,
            disks_at(self.journal_directories, "journal"),
            disks_at(self.ledger_directories, "ledger"),
        )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return True
