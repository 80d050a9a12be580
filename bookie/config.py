"""What one bookie process is told: where it keeps its data, where it listens, who it is."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bookie.errors import AddressUnusable
from bookie.service import ServiceConfig
from bookie.storage import StorageConfig

WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, never bound by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    uri: str
    """Namespace of the cluster."""
    directory: Path
    """Journal, entry logs, index and cookie; made if it is not there."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: the port of the last start on this directory, at first any free one."""
    advertise: str = ""
    """Host that clients are told; needed if *host* is a wildcard. Default: *host*."""
    bookie: str | None = None
    """Name for the life of the data. Default: the name in the directory, at first host:port."""
    rack: str = ""
    session_timeout_s: float = 10.0
    """After a crash, clients may be sent here for so long."""
    metadata_timeout_s: float = 10.0
    service: ServiceConfig = field(default_factory=ServiceConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise AddressUnusable(self.host, self.port, "a port is a number from 0 to 65535")
        if self.host in WILDCARDS and not self.advertise:
            raise AddressUnusable(
                self.host, self.port, "clients cannot use a wildcard; say what to advertise"
            )

    def address(self, port: int) -> str:
        """Return what clients connect to when *port* is listened on."""
        host = self.advertise or self.host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
