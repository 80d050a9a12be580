"""Whether a log was left by its writer, and nobody stands to take it over."""

from dlog.manifest import Manifest
from leader import is_led
from ledger.metastore.port import MetadataStore


def was_left_open(manifest: Manifest) -> bool:
    """Whether somebody writes the log, or ended without closing it.

    One that was closed in order is at rest: it needs no leader."""
    last = manifest.last
    living = not (manifest.sealed or manifest.dropped)
    return living and last is not None and last.sealed is None


async def is_leaderless(store: MetadataStore, log: str, manifest: Manifest) -> bool:
    """Whether *log* had leaders, was left open, and has none now. Logs that are written without an
    election never are. Raises `MetadataUnavailable`."""
    return was_left_open(manifest) and await is_led(store, log) is False
