"""Compression of record batches, and what happens where its library is missing."""

import sys

import pytest

from dlog.aio import Log
from dlog.aio.admin import create_log, log_compression, update_settings
from dlog.aio.read import segments
from dlog.aio.read.segments import CompressionSample
from dlog.errors import CodecMissing, NoSuchLog
from dlog.recordbatch import BatchHeader, Codec, check_codec, parse_header
from dlog.settings import LogSettings, parse_settings
from ledger.errors import EntryUnavailable, NotEnoughBookies
from ledger.ids import LedgerId
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers

TROUBLE = NotEnoughBookies(2, ["b1"])
LIBRARIES = [
    pytest.param(Codec.ZSTD, ("zstandard",), "zstandard", id="zstd"),
    pytest.param(Codec.LZ4, ("lz4", "lz4.block"), "lz4", id="lz4"),
]


@pytest.mark.parametrize("codec", Codec)
async def test_a_log_of_each_codec_is_read_whatever_the_codec_of_others_is(codec: Codec) -> None:
    client = FakeCluster().client()
    settings = LogSettings(codec=codec)
    values = [b"a line of text " * i for i in range(50)]
    async with await Log.open("log", client=client, settings=settings) as log:
        await log.append_many(values)
        await log.append(b"")
    async with await Log.tail("log", client=client, follow=False) as reader:
        assert [record.value async for record in reader] == [*values, b""]


@pytest.mark.parametrize(("codec", "modules", "package"), LIBRARIES)
async def test_without_its_library_a_codec_is_refused_before_anybody_is_disturbed(
    codec: Codec, modules: tuple[str, ...], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCluster().client()
    log = await Log.open("log", client=client, settings=LogSettings(codec=codec))
    await log.append(b"a")
    with monkeypatch.context() as patch:
        for module in modules:
            patch.setitem(sys.modules, module, None)
        with pytest.raises(CodecMissing, match=f"pip install {package}"):
            await Log.open("log", client=client)
        with pytest.raises(CodecMissing, match=f"pip install {package}"):
            await Log.open("new", client=client, settings=LogSettings(codec=codec))
        async with await Log.tail("log", client=client, follow=False) as reader:
            with pytest.raises(CodecMissing, match=f"pip install {package}"):
                await anext(reader)
        async with await Log.open("plain", client=client) as plain:
            await plain.append(b"no library is needed")
    assert (await log.append(b"b")).offset == 1
    await log.close()


def test_no_codec_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("zstandard", "lz4", "lz4.block"):
        monkeypatch.setitem(sys.modules, module, None)
    check_codec(Codec.NONE)


TEXT = [b'{"carrier": "UA", "flight": %d}' % (i * 7919 % 997) for i in range(500)]


def headers_of(cluster: FakeCluster) -> list[list[BatchHeader]]:
    """Return the headers of the batches in each ledger, in the order of their creation."""
    ledgers = [cluster.ledgers[ledger_id] for ledger_id in sorted(cluster.ledgers)]
    return [[parse_header(entry) for entry in ledger.entries] for ledger in ledgers]


async def set_codec(client: FakeLedgers, codec: str) -> None:
    await update_settings("log", {"codec": codec}, client=client)


async def test_a_writer_takes_a_codec_that_is_set_for_its_next_segment() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append_many(TEXT)
        await set_codec(client, "zstd:1")
        await log.append_many(TEXT)
        await log.roll()
        await log.append_many(TEXT)
        await set_codec(client, "zstd:19")
        await log.roll()
        await log.append_many(TEXT)
        await set_codec(client, "lz4")
        await log.roll()
        await log.append_many(TEXT)
    found = headers_of(cluster)
    codecs = [[header.codec for header in segment] for segment in found]
    zstd = [Codec.ZSTD]
    assert codecs == [[Codec.NONE, Codec.NONE], zstd, zstd, [Codec.LZ4]]
    assert found[2][0].stored_bytes < found[1][0].stored_bytes, "the level changed, too"
    async with await Log.tail("log", client=client, follow=False) as reader:
        assert [record.value async for record in reader] == TEXT * 5


async def test_a_writer_that_heals_goes_on_with_the_codec_that_was_set() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        await set_codec(client, "lz4")
        log.writer.lose(TROUBLE)
        await log.append(b"b")
        await log.roll()
        await log.append(b"c")
    codecs = [[header.codec for header in segment] for segment in headers_of(cluster)]
    assert codecs == [[Codec.NONE], [Codec.LZ4], [Codec.LZ4]]
    assert not log.writer._compressions, "those of ledgers that it let go of are forgotten"


async def test_a_codec_that_a_writer_cannot_use_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client, settings={"codec": "lz4"})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zstandard", None)
        await set_codec(client, "zstd")
        await log.append(b"a")
        await log.roll()
        await log.append(b"b")
        await log.roll()
    await log.append(b"c")
    await log.roll()
    await log.append(b"d")
    await log.close()
    [*before, last] = headers_of(cluster)
    assert [header.codec for [header] in before] == [Codec.LZ4] * 3
    assert [header.codec for header in last] == [Codec.ZSTD]


async def test_the_ratio_is_of_the_newest_entries_and_names_their_codecs() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await create_log("log", client=client, settings=parse_settings({"codec": "none"}))
    assert await log_compression("log", client=client) is None
    async with await Log.open("log", client=client) as log:
        await log.append_many(TEXT)
        sample = await log_compression("log", client=client)
        assert sample is not None
        assert (sample.ratio, sample.codecs, sample.records) == (1.0, (Codec.NONE,), 500)
        await set_codec(client, "zstd")
        await log.roll()
        await log.append_many(TEXT)
        await log.append(b"x")
        sample = await log_compression("log", client=client)
    headers = [header for segment in headers_of(cluster) for header in segment]
    assert sample == CompressionSample(
        entries=3,
        records=1001,
        stored_bytes=sum(header.stored_bytes for header in headers),
        uncompressed_bytes=sum(header.body_bytes for header in headers),
        codecs=(Codec.NONE, Codec.ZSTD),
    )
    assert 0.4 < sample.ratio < 0.8
    with pytest.raises(NoSuchLog):
        await log_compression("another", client=client)


@pytest.mark.parametrize(
    ("bound", "value", "entries"),
    [("SAMPLE_ENTRIES_MAX", 3, 3), ("SAMPLE_BYTES_MAX", 1, 1), ("SAMPLE_SEGMENTS_MAX", 2, 4)],
)
async def test_the_sample_is_bounded_and_of_the_newest(
    bound: str, value: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, bound, value)
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        for size in (1, 2, 3, 4, 5, 6):
            await log.append_many([b""] * size)
            if size % 2 == 0:
                await log.roll()
        sample = await log_compression("log", client=client)
    assert sample is not None
    newest = {1: 6, 3: 6 + 5 + 4, 4: 6 + 5 + 4 + 3}
    if bound == "SAMPLE_SEGMENTS_MAX":
        entries, newest = 2, {2: 6 + 5}  # the newest segment of all is empty
    assert (sample.entries, sample.records) == (entries, newest[entries])


async def test_segments_that_are_trimmed_meanwhile_are_left_out_of_the_sample() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        await log.roll()
        await log.append(b"b")
        gone = min(cluster.ledgers)

        async def opened(ledger_id: LedgerId) -> None:
            if ledger_id == gone:
                cluster.ledgers.pop(gone, None)

        cluster.before("open", opened)
        sample = await log_compression("log", client=client)
    assert sample is not None
    assert sample.entries == 1


async def test_bookies_that_cannot_say_are_an_error_of_the_sample() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        cluster.fail_next("lac", EntryUnavailable(LedgerId(1), 0, "nobody answers"))
        with pytest.raises(EntryUnavailable):
            await log_compression("log", client=client)
