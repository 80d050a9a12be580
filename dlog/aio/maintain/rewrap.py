"""Wraps the data keys of a log's ledgers with another key. No entry is read or written."""

from dataclasses import dataclass, replace
from typing import Final

from dlog.aio.store import ManifestNode
from dlog.encryption.keyring import keyring
from dlog.encryption.ledgers import STAMP_DATA_KEY, STAMP_KEY, wrapping
from dlog.encryption.names import NAME_ALLOWED, is_key_name
from dlog.errors import InvalidKeys, ObjectStorageUnsupported
from dlog.protocol.edits import check_living
from ledger.client import LedgerClient
from ledger.errors import BadVersion, NoSuchLedger
from ledger.ids import LedgerId
from ledger.metadata import LedgerState

RACES_MAX: Final = 5
"""Repair may change the same metadata."""


@dataclass(frozen=True, slots=True)
class Rewrapped:
    rewrapped: int
    left: int
    """Segments that are encrypted with another key and not sealed."""


async def rewrap(client: LedgerClient, log: str, name: str) -> Rewrapped:
    """Wrap what is wrapped with another key than *name* with that one.

    May be repeated, and interrupted at any place. Ledgers that are still written are left: only
    their writer changes their metadata. Raises `NoSuchLog`, `BadVersion` if others kept changing
    the same ledger, `ObjectStorageUnsupported` before anything is changed, and what
    `dlog.encryption.keyring` does."""
    if not is_key_name(name):
        raise InvalidKeys("the other key", f"the name of a key is {NAME_ALLOWED}")
    manifest, _ = await ManifestNode(client.store, log).read()
    check_living(manifest, log)
    if manifest.runs:
        what = f"segment {manifest.runs[0].first_number}"
        raise ObjectStorageUnsupported(log, what, manifest.runs[0].index.name, "rewrap the keys of")
    for segment in manifest.segments:
        stored = segment.location.object
        if stored is not None:  # its copy of the data key would stay as it is
            what = f"segment {segment.number}"
            raise ObjectStorageUnsupported(log, what, stored.name, "rewrap the keys of")
    rewrapped = left = 0
    for segment in manifest.segments:
        done = await _rewrap(client, segment.ledger_id, name)
        rewrapped += done is True
        left += done is False
    return Rewrapped(rewrapped, left)


async def _rewrap(client: LedgerClient, ledger_id: LedgerId, name: str) -> bool | None:
    """Return whether it was done; None: there was nothing to do."""
    for race in range(1, RACES_MAX + 1):
        try:
            metadata, version = await client.ledgers.read(ledger_id)
        except NoSuchLedger:  # trimmed meanwhile
            return None
        stamp = wrapping(metadata.custom)
        if stamp is None or stamp[0] == name:
            return None
        if metadata.state is not LedgerState.CLOSED:
            return False
        wrapped = await keyring().rewrapped(*stamp, name)
        custom = {**metadata.custom, STAMP_KEY: name.encode(), STAMP_DATA_KEY: wrapped}
        try:
            await client.ledgers.write(ledger_id, replace(metadata, custom=custom), version)
        except BadVersion:
            if race == RACES_MAX:
                raise
            continue
        except NoSuchLedger:
            return None
        return True
    raise AssertionError("unreachable")
