"""Writes `metadata_1.json`: values of the metadata store as the first release wrote them.

    python -m tests.kept.metadata

The file is kept for ever: every later version must be able to read it. It is made again only while
nothing was released; what later versions write gets files of its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bookie.identity.cookie import Cookie
from dlog.manifest import Manifest
from ledger.entry import access_key
from ledger.ids import BookieId, EntryId
from ledger.mark import Mark, written_without
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.quorum import Quorum
from ledger.security.access import Grant, Role, Rules

KEPT: Final = Path(__file__).with_name("metadata_1.json")
ENSEMBLE: Final = (BookieId("b0"), BookieId("b1"), BookieId("b2"))
OPEN: Final = LedgerMetadata(
    quorum=Quorum(3, 3, 2),
    fragments=(
        Fragment(EntryId(0), ENSEMBLE),
        Fragment(EntryId(17), (*ENSEMBLE[:2], BookieId("b9"))),
    ),
    access_key=access_key(bytes(range(32))),
    secret=bytes(range(32)),
    custom={"log": b"orders"},
    creation_token=b"token",
    created_ms=1_764_000_000_000,
)
WITH_PASSWORD: Final = LedgerMetadata(
    quorum=Quorum(3, 3, 2),
    fragments=(Fragment(EntryId(0), ENSEMBLE),),
    state=LedgerState.CLOSED,
    last_entry=EntryId(41),
    length=4200,
    access_key=access_key(b"password"),
    creation_token=b"token",
)
MARK: Final = Mark(written_without([BookieId("b2")], EntryId(17), 1_764_000_000_000))
RULES: Final = Rules((Grant("cn:alice", Role.WRITER, "orders*"),))
COOKIE: Final = Cookie(
    bookie="b0",
    instance="0123456789abcdef",
    cookie="fedcba9876543210",
    address="host:3181",
    directories="main",
    life=3,
    token="token",
    clean=True,
    checkpoint=7,
    census=b"census",
)
MANIFEST: Final = Manifest(incarnation="a" * 32)


def values() -> Mapping[str, bytes]:
    """Return what this version writes."""
    return {
        "ledger, open": OPEN.encode(),
        "ledger, closed, with a password": WITH_PASSWORD.encode(),
        "mark": MARK.encode(),
        "rules": RULES.encode(),
        "cookie": COOKIE.encode(),
        "manifest": MANIFEST.encode("orders"),
    }


def read(kept: Mapping[str, bytes]) -> Mapping[str, object]:
    """Return what *kept* says."""
    return {
        "ledger, open": LedgerMetadata.decode(kept["ledger, open"], path="/kept"),
        "ledger, closed, with a password": LedgerMetadata.decode(
            kept["ledger, closed, with a password"], path="/kept"
        ),
        "mark": Mark.decode(kept["mark"], path="/kept"),
        "rules": Rules.decode(kept["rules"]),
        "cookie": Cookie.decode(kept["cookie"]),
        "manifest": Manifest.decode(kept["manifest"], path="/kept"),
    }


if __name__ == "__main__":
    told = {name: value.hex() for name, value in values().items()}
    KEPT.write_text(json.dumps(told, indent=1) + "\n")
