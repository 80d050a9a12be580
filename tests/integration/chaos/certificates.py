"""The certificates of a run with TLS: valid for moments, and renewed under those who use them.

A process that went on with the files it began with would have no connection left after `VALID_S`.
"""

import asyncio
from pathlib import Path
from random import Random
from typing import Final

from dlog.tls import files
from dlog.tls.authority import CertificateRequest
from ledger.metastore import MetadataStore
from ledger.security.access import ANYTHING, Grant, Role, Rules
from ledger.security.documents import change_rules
from ledger.security.settings import TlsMode, TlsSettings

RENEW_EVERY_S: Final = 30.0
VALID_S: Final = 100.0
"""Long enough that a process which was stopped meanwhile finds the next ones."""
HALF_RENEWED_S: Final = (0.0, 0.0, 1.5)
"""How long a new key lies beside an old certificate, or the other way round: one of these."""
_DAY_S: Final = 86_400.0

STAGE: Final = "stage"
_ROLES: Final = {
    STAGE: (Role.OPERATOR, Role.WRITER),
    "writer": (Role.WRITER,),
    "reader": (Role.READER,),
}
"""By the name of a certificate, without the number behind it."""


class Certificates:
    """Made by an authority of its own, in *directory*."""

    def __init__(self, directory: Path, seed: str) -> None:
        self._directory = directory
        self._random = Random(f"{seed} certificates")
        self._wanted: dict[str, CertificateRequest] = {}
        self.renewals = 0
        self._ca = files.init(directory, "chaos", days=1.0).cert

    def of(self, name: str, *, bookie: bool = False, host: str = "") -> TlsSettings:
        """Return how the process *name* secures its connections: TLS or none."""
        pair = files.Pair.of(self._directory, name)
        if name not in self._wanted:
            wanted = CertificateRequest(
                name=name,
                bookie=name if bookie else "",
                hosts=(host,) if host else (),
                days=VALID_S / _DAY_S,
            )
            files.issue_to(self._directory, name, wanted)
            self._wanted[name] = wanted
        return TlsSettings(
            mode=TlsMode.REQUIRED, ca=str(self._ca), cert=str(pair.cert), key=str(pair.key)
        )

    async def grant(self, store: MetadataStore, log: str) -> None:
        """Let each process do what it does in a run, and no more."""
        grants = {
            Grant(f"cn:{name}", role, ANYTHING if name == STAGE else log)
            for name in self._wanted
            for role in _ROLES.get(name.partition("-")[0], ())
        }
        await change_rules(store, lambda _: Rules(tuple(sorted(grants))), by="the stage")

    async def keep_renewing(self) -> None:
        """Renew all of them every `RENEW_EVERY_S`, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            await asyncio.gather(*(self._renew(name) for name in self._wanted))
            self.renewals += 1

    async def _renew(self, name: str) -> None:
        new = files.issue_to(self._directory, f"{name}-next", self._wanted[name])
        old = files.Pair.of(self._directory, name)
        halves = [(new.key, old.key), (new.cert, old.cert)]
        self._random.shuffle(halves)
        for place, (fresh, stale) in enumerate(halves):
            if place:
                await asyncio.sleep(self._random.choice(HALF_RENEWED_S))
            fresh.replace(stale)
