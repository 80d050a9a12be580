"""The manifest's node: versions of a log that was made anew are not those of the one before."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dlog.aio.store import ManifestNode
from dlog.errors import NoSuchLog
from dlog.manifest import Manifest
from dlog.protocol.edits import drop_log
from ledger.errors import BadVersion, DamagedMetadata, MetadataUnavailable
from ledger.ids import LedgerId
from ledger.metastore.memory import MemoryStore
from ledger.metastore.ops import Op
from tests.dlog.faulty_store import FaultyStore

OLD = Manifest(incarnation="old")
NEW = Manifest(incarnation="new")
OTHER = OLD.with_segment(1, LedgerId(7), 0)


async def made_anew() -> ManifestNode:
    """Return the node of a log at version 0, whose predecessor was at version 0 too."""
    node = ManifestNode(MemoryStore("memory://fake", "fake"), "log")
    await node.create(OLD)
    await node.delete("old", 0)
    await node.create(NEW)
    return node


async def test_a_write_meant_for_the_log_before_never_hits_the_one_made_anew() -> None:
    node = await made_anew()
    with pytest.raises(NoSuchLog):
        await node.write(OTHER, 0)
    assert await node.read() == (NEW, 0)


async def test_a_deletion_meant_for_the_log_before_leaves_the_one_made_anew() -> None:
    node = await made_anew()
    await node.delete("old", 0)
    assert await node.read() == (NEW, 0)


async def test_a_log_that_was_deleted_does_not_come_back_by_a_creation_that_is_repeated() -> None:
    """The reply of the first attempt is lost; before the second another process deletes it."""
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    node = ManifestNode(store, "log")
    await store.create("/logs")
    honest = store.multi

    async def deleted_meanwhile(ops: Sequence[Op]) -> None:
        store.multi = honest  # type: ignore[method-assign]
        await honest(ops)
        await node.delete("old", 0)
        raise MetadataUnavailable("memory://fake", "multi", 0.1)

    store.multi = deleted_meanwhile  # type: ignore[method-assign]
    made = await node.create(OLD)
    assert made.incarnation != "old"
    assert (await node.read())[0] == made


async def test_a_creation_whose_reply_was_lost_knows_its_own_log() -> None:
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    await store.create("/logs")
    store.faults.append("lost reply")
    assert await ManifestNode(store, "log").create(OLD) == OLD


async def test_a_write_tells_its_version_and_a_lost_race() -> None:
    node = await made_anew()
    assert await node.write(NEW.trimmed(0), 0) == 1
    with pytest.raises(BadVersion):
        await node.write(NEW, 0)
    with pytest.raises(BadVersion):
        await node.delete("new", 0)


async def test_a_log_that_is_another_one_or_older_is_not_written() -> None:
    node = await made_anew()
    with pytest.raises(NoSuchLog):
        await node.write(OLD, 0)
    with pytest.raises(BadVersion):
        await node.write(replace(NEW, renames=1), 0)


async def test_a_log_whose_mark_is_missing_is_damaged() -> None:
    store = MemoryStore("memory://fake", "fake")
    await store.create("/logs/log", OLD.encode("log"))
    node = ManifestNode(store, "log")
    with pytest.raises(DamagedMetadata, match="the mark of its life old is missing"):
        await node.edit(drop_log("log", incarnation="old"))
    with pytest.raises(DamagedMetadata):
        await node.delete("old", 0)
    assert (await node.read())[0] == OLD
