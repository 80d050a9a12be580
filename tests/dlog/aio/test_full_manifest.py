"""A log whose manifest is full: it is read and truncated as ever, and then written again."""

from dataclasses import replace

import pytest

from dlog.aio import Log
from dlog.aio.admin import log_info, seal_log, truncate_log, update_settings
from dlog.errors import ManifestTooLarge, RollPostponed
from dlog.manifest import FULL_BYTES, Manifest, Sealed, Segment
from dlog.position import NO_TXID
from dlog.protocol.edits import add_segment, drop_log, seal_segment, trim
from dlog.protocol.takeover import take_over
from dlog.settings import LogSettings
from ledger.ids import EntryId, LedgerId
from ledger.metastore.ops import VALUE_BYTES_MAX
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.procedures import Raised, Script
from tests.waiting import eventually

LARGEST = (1 << 63) - 1
NEXT = 20_000
"""Of segments, in the manifest that is nearly full."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest is full with about ten segments; who waits for a roll is told soon."""
    monkeypatch.setattr("dlog.manifest.FULL_BYTES", 400)
    monkeypatch.setattr("dlog.protocol.log_writer.ROLL_PATIENCE_S", 0.2)
    monkeypatch.setattr("dlog.protocol.roll.BACKOFF_S", 0.01)


async def full_log(client: FakeLedgers) -> Log:
    """Return a log that could not be rolled any more."""
    log = await Log.open("log", client=client)
    while True:
        await log.append(b"x")
        try:
            await log.roll()
        except RollPostponed as error:
            if "truncate the log" in str(error):
                return log


async def values(client: FakeLedgers) -> list[bytes]:
    async with await Log.tail("log", client=client, follow=False) as reader:
        return [record.value async for record in reader]


@pytest.mark.usefixtures("small")
async def test_a_full_log_is_appended_to_and_read_and_rolls_once_it_is_truncated() -> None:
    client = FakeCluster().client()
    log = await full_log(client)
    before = (await log_info("log", client=client)).manifest.next_segment
    assert (await log.append(b"y")).dlsn.segment == before - 1
    assert await values(client) == [b"x"] * (log.last_offset) + [b"y"]
    await log.truncate(before=log.last_offset // 2)

    async def rolled() -> bool:
        return (await log.append(b"z")).dlsn.segment == before

    await eventually(rolled, "the roll that was postponed is done")
    await log.close()
    assert (await values(client))[-1] == b"z"


@pytest.mark.usefixtures("small")
async def test_a_full_log_is_not_opened_and_its_writer_goes_on() -> None:
    client = FakeCluster().client()
    log = await full_log(client)
    with pytest.raises(ManifestTooLarge) as caught:
        await Log.open("log", client=client)
    assert caught.value.retryable
    await log.append(b"undisturbed")
    await log.close()
    with pytest.raises(ManifestTooLarge):
        await Log.open("log", client=client)
    assert await truncate_log("log", before=5, client=client) == 5
    async with await Log.open("log", client=client) as again:
        await again.append(b"again")
    assert (await values(client))[-2:] == [b"undisturbed", b"again"]


@pytest.mark.usefixtures("small")
async def test_the_settings_of_a_full_log_are_changed_and_it_is_sealed() -> None:
    client = FakeCluster().client()
    log = await full_log(client)
    await update_settings("log", {"retention_bytes": 10_000_000}, client=client)
    await log.abandon()
    assert await seal_log("log", client=client) == log.last_offset + 1


def sealed(records: int, *, number: int = LARGEST) -> Sealed:
    return Sealed(EntryId(number), records, number, NO_TXID, NO_TXID, number, number)


def nearly_full() -> Manifest:
    """Return a manifest with an open segment that gets just one more, of the largest numbers."""
    only = Segment(NEXT, LedgerId(LARGEST), created_ms=0, first_offset=0)
    begun = Manifest(incarnation="i", segments=(only,), next_segment=NEXT + 1)
    empty = len(begun.encode("log"))
    listed = tuple(LedgerId(2**62 + i) for i in range((FULL_BYTES - 1 - empty) // 9))
    return replace(begun, deleting=listed)


def test_what_is_left_of_a_full_manifest_is_enough_for_all_that_must_not_be_refused() -> None:
    manifest = nearly_full()
    assert 0 < FULL_BYTES - len(manifest.encode("log")) < 20
    manifest = add_segment(
        "log",
        incarnation="i",
        own_segment=NEXT,
        number=NEXT + 1,
        ledger_id=LedgerId(0),
        now_ms=LARGEST,
    )(manifest)
    with pytest.raises(ManifestTooLarge):
        manifest.check_room("log")
    for number, ledger_id in ((NEXT, LARGEST), (NEXT + 1, 0)):
        records = LARGEST // 4
        seal = seal_segment("log", number, LedgerId(ledger_id), sealed(records), now_ms=0)
        manifest = seal(manifest)
        assert len(manifest.encode("log")) <= VALUE_BYTES_MAX
    manifest = replace(manifest, settings=LogSettings(retention_bytes=1 << 50), sealed=True)
    for edit in (
        trim("log", LARGEST // 8, incarnation="i"),
        trim("log", LARGEST // 2 - 2, incarnation="i"),
        drop_log("log", incarnation="i"),
    ):
        manifest = edit(manifest)
        assert len(manifest.encode("log")) <= VALUE_BYTES_MAX - 40_000


def test_a_takeover_of_a_full_log_ends_before_anybody_is_fenced() -> None:
    full = replace(nearly_full(), owner="o" * 100)
    takeover = Script(take_over("log"))
    takeover.begin()
    end = takeover.answer((full, 3))
    assert isinstance(end, Raised)
    assert isinstance(end.error, ManifestTooLarge)
