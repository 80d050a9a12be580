"""Texts from people, and from programs such as Spark."""

import json
from collections.abc import Callable
from typing import Any, Final

import typer

from dlog.cli import options
from dlog.errors import InvalidName
from dlog.names import check_name
from dlog.position import DLSN
from dlog.spark import offsets as spark_offsets
from dlog.spark.errors import InvalidOption
from dlog.spark.offsets import StreamPosition
from dlog.spark.options import SourceOptions
from dlog.spark.selection import parse_bounds
from dlog.spark.sink.keeper import frames as keeper_frames
from ledger.errors import InvalidUri
from ledger.log_events import now_ms
from ledger.metastore.uri import parse_uri
from tests.fuzz.target import Target


def _text(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


def _option(parse: Callable[[str, str], Any]) -> Callable[[bytes], Any]:
    return _text(lambda text: parse(text, "--option"))


def _encoded(*texts: str) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


def _offset(text: str) -> object:
    return spark_offsets.decode(keeper_frames.decode(text.encode(errors="replace")))


def _source_options(text: str) -> object:
    return SourceOptions.parse(dict(line.partition("=")[::2] for line in text.split("\n")))


OFFSET: Final = json.dumps(spark_offsets.encode({"a": StreamPosition("i", 5)}))
PEOPLE: Final = (
    Target(
        "uri",
        _text(parse_uri),
        _encoded(
            "file:///tmp/x",
            "memory://x",
            "zk://h:1,[::1]:2/root?auth=digest:u:p&ca=/c&cert=/a&key=/b",
        ),
        refuses=InvalidUri,
    ),
    Target(
        "log-name",
        _text(check_name),
        _encoded("flights", "eu/orders", "größe"),
        refuses=InvalidName,
    ),
    Target("dlsn", _text(DLSN.parse), _encoded("3:17:0"), refuses=ValueError),
    Target(
        "option-start",
        _option(options.parse_start),
        _encoded("start", "end", "17", "3:17:0", "txid:5", "time:2h", "time:2026-11-21T12:00:00"),
        refuses=(typer.BadParameter,),
    ),
    Target(
        "option-duration",
        _option(options.parse_duration),
        _encoded("250ms", "7d", "1.5h", "90"),
        refuses=(typer.BadParameter,),
    ),
    Target(
        "option-size",
        _option(options.parse_size),
        _encoded("10M", "512 KiB", "1.5g", "90"),
        refuses=(typer.BadParameter,),
    ),
    Target("spark-offset", _text(_offset), _encoded(OFFSET), refuses=(ValueError, Exception)),
    Target(
        "spark-bounds",
        _text(lambda text: parse_bounds({"startingoffsets": text}, "starting", now_ms)),
        _encoded("earliest", '{"a": 5, "b": "latest"}'),
        refuses=InvalidOption,
    ),
    Target(
        "spark-options",
        _text(_source_options),
        _encoded("uri=file:///x\nlogs=a,b\nmaxrecordspertrigger=5\nendingtimestamp=2026-01-01"),
        refuses=InvalidOption,
    ),
)
