"""Compression of record batches, and what happens where its library is missing."""

import sys

import pytest

from dlog.aio import Log
from dlog.errors import CodecMissing
from dlog.recordbatch import Codec, check_codec
from dlog.settings import LogSettings
from tests.dlog.fake_ledgers import FakeCluster

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
