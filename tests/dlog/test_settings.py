"""Settings of a log by name, as configuration files and command lines give them."""

from typing import Any

import pytest

from dlog.errors import InvalidSettings
from dlog.recordbatch import Codec
from dlog.settings import SETTING_NAMES, LogSettings, codec_name, parse_settings, settings_facts
from ledger.entry import Digest
from ledger.errors import InvalidQuorum
from ledger.quorum import Quorum


def test_settings_are_taken_by_name() -> None:
    parsed = parse_settings(
        {"ensemble": 5, "ack_quorum": 3, "codec": "zstd", "digest": "HMAC_SHA256", "roll_idle_s": 2}
    )
    assert parsed == LogSettings(
        quorum=Quorum(5, 3, 3), codec=Codec.ZSTD, digest=Digest.HMAC_SHA256, roll_idle_s=2
    )


def test_what_is_not_named_stays_as_it_was() -> None:
    base = LogSettings(roll_records=7, codec=Codec.LZ4)
    assert parse_settings({"roll_bytes": 5}, base) == LogSettings(
        roll_records=7, codec=Codec.LZ4, roll_bytes=5
    )


def test_a_name_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidSettings, match=r"rol_bytes.*no such setting") as caught:
        parse_settings({"rol_bytes": 5})
    for name in SETTING_NAMES:
        assert name in str(caught.value)


def test_settings_by_name_come_back() -> None:
    settings = LogSettings(quorum=Quorum(5, 4, 3), codec=Codec.ZSTD, retention_age_s=0.5)
    assert parse_settings(settings_facts(settings)) == settings
    assert tuple(settings_facts(settings)) == SETTING_NAMES


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("record_bytes_max", 16 * 1024 * 1024 + 1),
        ("record_bytes_max", 0),
        ("record_bytes_max", True),
        ("roll_bytes", "5 parsecs"),
        ("roll_bytes", 1.5),
        ("roll_records", 2**63),
        ("roll_age_s", float("nan")),
        ("roll_age_s", float("inf")),
        ("roll_age_s", 0.0001),
        ("roll_idle_s", -1),
        ("codec", "gzip"),
        ("codec", 1),
        ("codec", "zstd:"),
        ("codec", "zstd:0"),
        ("codec", "zstd:20"),
        ("codec", "zstd:-1"),
        ("codec", "zstd:fast"),
        ("codec", "zstd:3:3"),
        ("codec", "zstd:" + "9" * 10_000),
        ("codec", "lz4:3"),
        ("codec", "none:1"),
        ("codec_level", 3),
        ("ensemble", "three"),
        ("retention_waits_for_consumers", 1),
    ],
)
def test_a_value_out_of_range_or_of_another_kind_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidSettings, match=name):
        parse_settings({name: value})


def test_a_quorum_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidQuorum):
        parse_settings({"ensemble": 2})


@pytest.mark.parametrize(
    ("text", "codec", "level"),
    [
        ("none", Codec.NONE, 0),
        ("lz4", Codec.LZ4, 0),
        ("zstd", Codec.ZSTD, 0),
        ("zstd:1", Codec.ZSTD, 1),
        ("zstd:19", Codec.ZSTD, 19),
    ],
)
def test_a_codec_is_named_with_its_level(text: str, codec: Codec, level: int) -> None:
    parsed = parse_settings({"codec": text})
    assert parsed == LogSettings(codec=codec, codec_level=level)
    assert settings_facts(parsed)["codec"] == text == codec_name(parsed)
    assert parse_settings({"codec": text.upper()}) == parsed


def test_a_codec_that_is_named_anew_keeps_no_level_of_the_one_before() -> None:
    base = parse_settings({"codec": "zstd:9"})
    assert parse_settings({"codec": "lz4"}, base) == LogSettings(codec=Codec.LZ4)
    assert parse_settings({"codec": "zstd"}, base) == LogSettings(codec=Codec.ZSTD)
    assert parse_settings({"codec": Codec.ZSTD}, base) == LogSettings(codec=Codec.ZSTD)
    assert parse_settings({"roll_records": 0}, base) == base


@pytest.mark.parametrize("wrong", [{"codec": "snappy"}, {"codec": "zstd:99"}, {"codec": "lz4:1"}])
def test_a_codec_that_does_not_exist_is_refused_with_those_that_do(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidSettings, match=r"use none, zstd, zstd:1 to zstd:19 .*, or lz4"):
        parse_settings(wrong)


@pytest.mark.parametrize(
    ("codec", "level"), [(Codec.NONE, 1), (Codec.LZ4, 1), (Codec.ZSTD, 20), (Codec.ZSTD, -1)]
)
def test_a_level_that_a_codec_does_not_have_is_refused(codec: Codec, level: int) -> None:
    with pytest.raises(InvalidSettings, match="codec_level"):
        LogSettings(codec=codec, codec_level=level)


@pytest.mark.parametrize("fields", [{"codec": "zstd"}, {"digest": 1}, {"quorum": (3, 3, 2)}])
def test_a_setting_of_another_kind_is_refused_before_it_is_stored(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match="use a "):
        LogSettings(**fields)
