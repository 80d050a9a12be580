"""What somebody meets on the first day with dlog, coming from Kafka: a test for each friction."""

import asyncio
import math
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Final

import pytest

import dlog
from dlog import AppendOutcomeUnknown, Log, LostOwnership
from dlog.aio.maintain.janitor import JanitorConfig
from dlog.errors import InvalidPosition, InvalidSettings
from dlog.position import DLSN, Start, Timestamp, Txid
from dlog.settings import LogSettings, parse_settings
from dlog.spark.errors import InvalidOption
from dlog.spark.options import SourceOptions
from dlog.spark.selection import parse_bounds
from dlog.starts import parse_start
from dlog.testing import Cluster, cluster
from ledger.client import ClientConfig, LedgerClient
from ledger.errors import InvalidUri, InvalidValue, NoNamespace, NotEnoughBookies
from ledger.log_events import now_ms
from ledger.options import directory
from tests.waiting import PATIENCE_S

ROOT: Final = Path(__file__).parents[2]
ELSEWHERE: Final = {
    "1, a dead bookie is invisible": (
        "dlog/cli/test_cli_health.py::test_a_bookie_that_died_is_missed_and_so_are_its_copies",
        "dlog/cli/test_cli_operating.py::"
        "test_a_bookie_that_does_not_answer_is_told_and_the_others_are_shown",
    ),
    "2, a start beyond the end, a misspelt log": (
        "dlog/spark/test_spark_source.py::"
        "test_a_start_beyond_the_end_is_refused_and_skips_nothing_later",
        "dlog/spark/test_spark_source.py::test_a_misspelt_log_in_a_streams_start_is_refused",
    ),
    "9, what kcat does": (
        "dlog/cli/test_cli_records.py::test_the_namespace_may_be_named_before_the_command",
        "dlog/cli/test_cli_records.py::test_a_long_list_has_end_size_rate_and_leader",
        "dlog/cli/test_cli_records.py::test_what_tail_prints_as_json_is_appended_as_a_copy",
        "dlog/cli/test_cli_records.py::"
        "test_keys_and_other_ends_than_the_lines_are_taken_as_kcat_takes_them",
        "dlog/cli/test_cli_records.py::test_a_format_prints_what_kcat_would",
        "dlog/cli/test_cli_records.py::test_a_format_shows_no_sentinel_for_what_a_record_has_not",
    ),
    "10, records and batches are mixed": (
        "dlog/sync/test_sync_log.py::test_records_batches_and_chunks_may_be_mixed_while_reading",
        "dlog/aio/test_aio_reader.py::test_batches_records_and_chunks_can_be_mixed",
    ),
    "11, how fast it is, and a report of trouble": (
        "dlog/cli/test_cli_records.py::test_a_cluster_is_measured_by_its_users",
        "dlog/cli/test_cli_perf_standby.py::"
        "test_rounds_are_timed_with_their_parts_and_leave_nothing_behind",
        "dlog/cli/test_cli_debug.py::"
        "test_a_bundle_with_a_dead_bookie_has_everything_else_and_no_secret",
    ),
    "12, defaults of disk and entry logs": (
        "bookie/test_start_options.py::test_the_help_shows_the_defaults_that_count",
        "bookie/storage/test_storage_config.py::"
        "test_an_entry_log_is_a_small_share_of_the_smallest_disk",
    ),
}
"""Frictions whose tests stand beside others of what they are about."""
TAKEN_OVER: Final = (LostOwnership, AppendOutcomeUnknown)


@pytest.fixture(scope="module")
def made() -> Iterator[Cluster]:
    with cluster() as made:
        with Log.open("numbers", uri=made.uri) as log:
            for number in range(5):
                log.append(b"%d" % number, txid=number)
        yield made


# 3. earliest and latest.


@pytest.mark.parametrize(("word", "ours"), [("earliest", "start"), ("latest", "end")])
def test_kafkas_words_for_the_ends_of_a_log_mean_ours(
    made: Cluster, word: Start, ours: Start
) -> None:
    assert parse_start(word, "start", now_ms) == ours
    with (
        Log.tail("numbers", uri=made.uri, start=word) as found,
        Log.tail("numbers", uri=made.uri, start=ours) as expected,
    ):
        assert found.position == expected.position
    stopped = Log.tail("numbers", uri=made.uri, stop="latest")
    assert [record.value for record in stopped] == [b"0", b"1", b"2", b"3", b"4"]


def test_spark_takes_our_words_beside_kafkas() -> None:
    for word in ("earliest", "start"):
        assert parse_bounds({"startingoffsets": word}, "starting", now_ms).default == "start"
    for word in ("latest", "end", '{"a": "end"}'):
        assert parse_bounds({"endingoffsets": word}, "ending", now_ms).of("a") == "end"


# 4. A mistyped path.


def test_a_mistyped_path_of_a_namespace_is_refused_and_makes_no_directory(tmp_path: Path) -> None:
    missing = tmp_path / "mistyped"
    with pytest.raises(NoNamespace, match=r"there is no namespace at file:///.*/mistyped"):
        Log.open("log", uri=missing.as_uri())
    with pytest.raises(NoNamespace):
        asyncio.run(LedgerClient.connect(missing.as_uri()))
    assert not missing.exists()


# 5. Errors that were handled.


def test_leaving_a_log_does_not_raise_again_what_an_append_told(made: Cluster) -> None:
    with Log.open("stolen", uri=made.uri) as log:
        Log.open("stolen", uri=made.uri).close()
        with pytest.raises(TAKEN_OVER):
            log.append(b"late")


def test_leaving_a_log_does_not_raise_again_what_a_future_told(made: Cluster) -> None:
    with Log.open("stolen", uri=made.uri) as log:
        Log.open("stolen", uri=made.uri).close()
        assert isinstance(log.append_async(b"late").exception(PATIENCE_S), TAKEN_OVER)
    with Log.open("stolen", uri=made.uri) as log:
        Log.open("stolen", uri=made.uri).close()
        with pytest.raises(TAKEN_OVER):
            log.append_many_async([b"late"]).result(PATIENCE_S)


def test_leaving_a_log_raises_what_nobody_was_told(made: Cluster) -> None:
    with pytest.raises(TAKEN_OVER):
        lose_unheard(made)


def lose_unheard(made: Cluster) -> None:
    with Log.open("stolen", uri=made.uri) as log:
        Log.open("stolen", uri=made.uri).close()
        many, one = log.append_many_async([b"late"]), log.append_async(b"later")
        assert wait([many], PATIENCE_S).done
        assert wait([one], PATIENCE_S).done


async def test_leaving_an_asynchronous_log_does_not_raise_again_what_was_told(
    made: Cluster,
) -> None:
    async with await dlog.aio.Log.open("stolen", uri=made.uri) as log:
        await (await dlog.aio.Log.open("stolen", uri=made.uri)).close()
        with pytest.raises(TAKEN_OVER):
            await log.append_many_async([b"late"])
    with pytest.raises(TAKEN_OVER):
        await lose_unheard_async(made)


async def lose_unheard_async(made: Cluster) -> None:
    async with await dlog.aio.Log.open("stolen", uri=made.uri) as log:
        await (await dlog.aio.Log.open("stolen", uri=made.uri)).close()
        await asyncio.wait([log.append_many_async([b"late"])])


# 6. Units.


def test_units_are_understood_everywhere_and_so_are_numbers(made: Cluster) -> None:
    with Log.open(
        "units", uri=made.uri, reopen_timeout_s="30s", settings={"roll_bytes": "10M"}
    ) as log:
        assert log.settings.roll_bytes == 10 << 20
        log.append(b"x")
        log.truncate(keep_age_s="7d")
        log.truncate(keep_bytes="10M")
    with Log.tail("units", uri=made.uri, start="end") as reader:
        assert not reader.read_batch(timeout_s="1ms")
    assert parse_settings({"retention_age_s": "7d"}) == parse_settings({"retention_age_s": 604800})
    texts = LogSettings(roll_bytes="10M", retention_age_s="7d")  # type: ignore[arg-type]
    assert texts == LogSettings(roll_bytes=10 << 20, retention_age_s=604800.0)
    with pytest.raises(InvalidSettings, match="roll_age_s='soon': use seconds, or 250ms"):
        LogSettings(roll_age_s="soon")  # type: ignore[arg-type]
    assert ClientConfig(bookie_timeout_s="250ms").bookie_timeout_s == 0.25  # type: ignore[arg-type]
    given = {"logs": "a", "maxBytesPerTrigger": "10M", "pollMs": "2s"}
    options = SourceOptions.parse(given)
    assert (options.bytes_per_trigger_max, options.poll_ms) == (10 << 20, 2000)


# 7. Values that mean nothing.


@pytest.mark.parametrize(
    "start", [math.nan, 1.5, True, -1, None, "begin", b"end", DLSN(0, -1, 0), Txid(2**63)]
)
def test_a_start_that_means_nothing_is_one_sentence(made: Cluster, start: Start) -> None:
    with pytest.raises(InvalidPosition, match="use start, end, an offset"):
        Log.tail("numbers", uri=made.uri, start=start)
    with pytest.raises(InvalidPosition, match="use end, an offset"):
        Log.tail("numbers", uri=made.uri, stop=Timestamp(5))  # type: ignore[arg-type]


@pytest.mark.parametrize("uri", [5, b"file:///x", Path("/x")])
def test_a_uri_that_is_no_string_is_one_sentence(uri: str) -> None:
    with pytest.raises(InvalidUri, match="it is not a string"):
        Log.open("log", uri=uri)


@pytest.mark.parametrize("seconds", [math.nan, -1, "soon", "-5s", True, "", math.inf, "1e3"])
def test_a_duration_that_means_nothing_is_one_sentence(made: Cluster, seconds: float) -> None:
    with (
        Log.tail("numbers", uri=made.uri, start="end") as reader,
        pytest.raises(InvalidValue, match=r"timeout_s=.*: use seconds, or 250ms"),
    ):
        reader.read_batch(timeout_s=seconds)
    with pytest.raises(InvalidValue, match="reopen_timeout_s"):
        Log.open("numbers", uri=made.uri, reopen_timeout_s=seconds)
    with pytest.raises(InvalidValue, match="lease_s"):
        dlog.Standby.open("numbers", print, uri=made.uri, lease_s=seconds)
    with pytest.raises(InvalidValue, match="wait_s"):
        Log.consumer("c", "numbers", uri=made.uri, wait_s=seconds)
    with pytest.raises(InvalidValue, match="interval_s"):
        JanitorConfig(interval_s=seconds)
    with pytest.raises(InvalidSettings, match="roll_age_s"):
        parse_settings({"roll_age_s": seconds})


def test_a_truncation_to_what_is_no_record_is_one_sentence(made: Cluster) -> None:
    with Log.open("numbers", uri=made.uri) as log:
        for before in (True, math.nan, "end"):
            with pytest.raises(InvalidPosition):
                log.truncate(before=before)  # type: ignore[arg-type]
        for size in (-1, True, math.nan, "much"):
            with pytest.raises(InvalidValue, match="keep_bytes"):
                log.truncate(keep_bytes=size)  # type: ignore[arg-type]


def test_an_empty_directory_is_a_usage_error() -> None:
    with pytest.raises(Exception, match="it is empty; name a directory"):
        directory("")
    assert directory(".") == Path()


# 2. Spark.


def test_an_option_of_spark_is_named_as_the_user_wrote_it() -> None:
    given = {"logs": "a", "startingoffsets": '{"b": 5}'}
    with pytest.raises(InvalidOption, match=r"startingOffsets=.*'b' is none of the logs"):
        SourceOptions.parse(given)


# 8. Read-only bookies.


def test_too_few_bookies_are_said_to_be_read_only_or_not_running() -> None:
    with cluster() as made:
        made.kill_bookie(2)
        for index in (0, 1):
            made.set_read_only(index)
        with pytest.raises(NotEnoughBookies) as caught:
            Log.open("log", uri=made.uri)
    assert caught.value.available == ()
    assert sorted(caught.value.read_only) == ["bookie-0", "bookie-1"]
    assert caught.value.lost == ("bookie-2",)
    said = str(caught.value)
    assert "read-only: bookie-0" in said
    assert "known and not running: bookie-2" in said
    assert "start these or more bookies" in said


def test_the_reason_for_being_read_only_is_named() -> None:
    said = str(NotEnoughBookies(3, [], read_only={"b0": "the disk is full", "b1": ""}))
    assert "3 bookies are needed, available: none; read-only: b0 (the disk is full), b1" in said
    assert "'dlog bookie status' says why" in said


# Those that are tested elsewhere.


@pytest.mark.parametrize("place", [place for places in ELSEWHERE.values() for place in places])
def test_each_friction_that_is_not_tried_here_has_its_test(place: str) -> None:
    file, _, name = place.partition("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text()
