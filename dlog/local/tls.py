"""Certificates of a cluster on one machine: an authority in its directory, one for each process."""

from pathlib import Path
from typing import Final

from dlog.local.errors import InvalidCluster
from ledger.security.settings import TlsMode, TlsSettings

CLIENT: Final = "client"
_HOSTS: Final = ("127.0.0.1", "::1", "localhost")


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
        from dlog.tls.authority import Wanted

        pair = files.Pair.of(self._directory, name)
        if not pair.cert.exists():
            pair.key.unlink(missing_ok=True)  # of a start that was interrupted
            wanted = Wanted(name=name, bookie=bookie, hosts=_HOSTS, days=3650)
            files.issue_to(self._directory, name, wanted)
        return TlsSettings(
            mode=TlsMode.REQUIRED, ca=str(self._ca), cert=str(pair.cert), key=str(pair.key)
        )
