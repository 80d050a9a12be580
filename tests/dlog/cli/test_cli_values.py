"""What people write on a command line, as values."""

import time

import pytest
import typer

from dlog.cli.options import (
    parse_duration,
    parse_headers,
    parse_settings,
    parse_size,
    parse_start,
    parse_time,
)
from dlog.position import Timestamp
from dlog.recordbatch import Codec
from dlog.settings import parse_settings as settings_of
from ledger.log_events import now_ms
from ledger.values import counted, nearest


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise(text: str, milliseconds: int) -> None:
    assert parse_time(text, "--x") == milliseconds
    assert parse_start(f"time:{text}") == Timestamp(milliseconds)


def test_a_time_is_utc_wherever_the_machine_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XYZ-5")
        time.tzset()
        found = parse_time("2023-11-14T22:13:20", "--x")
    time.tzset()
    assert found == 1_700_000_000_000


def test_things_are_counted_in_words() -> None:
    assert [counted(count, "ledger") for count in (0, 1, 2)] == [
        "0 ledgers",
        "1 ledger",
        "2 ledgers",
    ]
    assert [counted(count, "entry") for count in (1, 1234)] == ["1 entry", "1,234 entries"]
    assert counted(2, "key") == "2 keys"


def test_the_nearest_name_is_found_among_those_that_sort_beside_it() -> None:
    assert nearest("flihgts", ["orders", "flights"]) == "flights"
    assert nearest("flights", ["flights"]) is None, "it exists"
    assert nearest("x", ["orders", "flights"]) is None
    assert nearest("x", []) is None
    many = [f"log-{number:06}" for number in range(100_000)]
    assert nearest("log-077777x", many) == "log-077777"
    assert nearest("og-000000", many) is None, "what sorts elsewhere is not compared"


def test_a_time_may_be_an_age() -> None:
    before = now_ms()
    found = parse_time("2h", "--x")
    assert before - 7_200_000 <= found <= now_ms() - 7_200_000


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "2023-13-01", "2 hours", "1e3", "٣"])
def test_what_is_no_time_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="use 2026-"):
        parse_time(text, "--x")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("90s", 90.0),
        ("15m", 900.0),
        ("2h", 7200.0),
        ("7d", 604800.0),
        ("1w", 604800.0),
    ],
)
def test_a_duration_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text, "--x") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "7 days", "1y", "h"])
def test_what_is_no_duration_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="use seconds"):
        parse_duration(text, "--x")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("512K", 512 << 10),
        ("10m", 10 << 20),
        ("1.5G", 3 << 29),
        ("2GiB", 2 << 30),
        ("1 TB", 1 << 40),
    ],
)
def test_a_size_is_bytes_or_has_a_unit(text: str, size: int) -> None:
    assert parse_size(text, "--x") == size


@pytest.mark.parametrize("text", ["", "-1", "1X", "G", "1,5G", "0x10"])
def test_what_is_no_size_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="use bytes"):
        parse_size(text, "--x")


def test_settings_are_pairs_and_their_names_tell_how_values_are_read() -> None:
    pairs = [
        "roll_bytes=256M",
        "record_bytes_max=1M",
        "retention_age_s=7d",
        "codec=zstd",
        "ensemble=5",
        "retention_waits_for_consumers=true",
    ]
    settings = settings_of(parse_settings(pairs, "--set"))
    assert (settings.roll_bytes, settings.record_bytes_max) == (256 << 20, 1 << 20)
    assert (settings.retention_age_s, settings.codec) == (604800.0, Codec.ZSTD)
    assert settings.quorum.ensemble == 5
    assert settings.retention_waits_for_consumers


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (["codec"], "is not NAME=VALUE"),
        (["=zstd"], "is not NAME=VALUE"),
        (["codec=zstd", "codec=lz4"], "given twice"),
    ],
)
def test_settings_that_are_no_pairs_are_a_usage_error(pairs: list[str], reason: str) -> None:
    with pytest.raises(typer.BadParameter, match=reason):
        parse_settings(pairs, "--set")


def test_headers_are_pairs_of_which_the_value_may_be_anything() -> None:
    pairs = ["trace=a=b", "empty=", "größe=ü", "raw=\udcff", "empty=again", "null"]
    assert parse_headers(pairs) == [
        ("trace", b"a=b"),
        ("empty", b""),
        ("größe", "ü".encode()),
        ("raw", b"\xff"),
        ("empty", b"again"),
        ("null", None),
    ]


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (["=1"], "0 bytes; use 1 to 255"),
        ([f"{i}=" for i in range(65)], "65; give a record 64 at most"),
    ],
)
def test_what_is_no_header_is_a_usage_error(pairs: list[str], reason: str) -> None:
    with pytest.raises(typer.BadParameter, match=reason):
        parse_headers(pairs)
