"""Names of topics, the logs that are their partitions, and their settings by Kafka's names."""

import re
from uuid import UUID

import pytest

from dlog.kafka.protocol.topics import (
    NO_ID,
    PRODUCER_ID_BLOCK,
    InvalidTopic,
    InvalidTopicConfig,
    TopicRecord,
    TopicTable,
    check_topic,
    log_settings_of,
    next_producer_ids,
    quorum_of,
    topic_configs_of,
)
from dlog.names import check_new_name
from dlog.settings import LogSettings, parse_settings
from ledger.errors import DamagedMetadata

ID = UUID(int=7)


def topic(name: str, partitions: int = 1) -> TopicRecord:
    return TopicRecord.new(name, partitions, id_=ID, now_ms=5, settings={"codec": "zstd"})


def test_a_topic_of_one_partition_has_the_log_of_its_name() -> None:
    assert topic("greetings").logs == ("greetings",)


def test_a_topic_of_several_partitions_has_numbered_logs() -> None:
    assert topic("greetings", 3).logs == ("greetings-0", "greetings-1", "greetings-2")


def test_a_topic_that_grows_keeps_its_logs() -> None:
    assert topic("greetings").grown(3).logs == ("greetings", "greetings-1", "greetings-2")
    with pytest.raises(InvalidTopic, match="only become more"):
        topic("greetings", 3).grown(2)


def test_the_logs_of_a_topic_are_never_named_as_those_of_dlog() -> None:
    assert topic("_schemas").logs == ("kafka/_schemas",)
    assert topic("_schemas").grown(2).logs == ("kafka/_schemas", "kafka/_schemas-1")
    assert topic("__x", 2).logs == ("kafka/__x-0", "kafka/__x-1")
    for log in topic("_" * 243, 10_000).logs:
        check_new_name(log)
    assert TopicTable((), ["_audit"]).find("_audit") is None


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "a" * 249, "_" * 243])
def test_names_of_kafka_are_names_of_topics(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "ä", "a b", "a" * 250, "_" * 244, ".", ".a", "a\n"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic(name)


@pytest.mark.parametrize("partitions", [0, -1, 10_001])
def test_a_topic_has_a_partition_at_least_and_not_too_many(partitions: int) -> None:
    with pytest.raises(InvalidTopic, match="partitions"):
        topic("greetings", partitions)


def test_a_record_is_read_as_it_was_written() -> None:
    written = topic("greetings", 2)
    assert TopicRecord.decode("greetings", written.encode()) == written


@pytest.mark.parametrize("value", [b"", b"\xff", b"\x08\x01", b"\x08\x02"])
def test_a_record_that_cannot_be_read_is_damaged_metadata(value: bytes) -> None:
    with pytest.raises(DamagedMetadata):
        TopicRecord.decode("greetings", value)


def test_a_log_without_a_record_is_a_topic_of_one_partition() -> None:
    table = TopicTable([topic("split", 2)], ["flights", "split-0", "shop/orders", "_audit"])
    assert table.names() == ["flights", "split"]
    found = table.find("flights")
    assert found is not None
    assert (found.logs, found.id) == (("flights",), NO_ID)
    assert table.find("split-0") is None
    assert table.find("shop/orders") is None
    assert table.claims("split-1") == "split"


def test_a_topic_that_is_being_deleted_is_not_found() -> None:
    table = TopicTable(
        [TopicRecord(name="t", id=ID, logs=("t",), deleting=("a1",), settings={})], ["t"]
    )
    assert table.find("t") is None
    assert table.names() == []


def test_producer_ids_come_in_blocks_that_do_not_overlap() -> None:
    first, value = next_producer_ids(None)
    second, _ = next_producer_ids(value)
    assert second == first + PRODUCER_ID_BLOCK
    with pytest.raises(DamagedMetadata):
        next_producer_ids(b"\xff")


def test_settings_have_a_logs_meaning_under_kafkas_names() -> None:
    given = {
        "retention.ms": "60000",
        "retention.bytes": "1000",
        "segment.bytes": "5000",
        "segment.ms": "250",
        "max.message.bytes": "2000",
        "min.insync.replicas": "2",
        "cleanup.policy": "delete",
    }
    settings = parse_settings(log_settings_of(given))
    assert (settings.retention_age_s, settings.retention_bytes) == (60.0, 1000)
    assert (settings.roll_bytes, settings.roll_age_s) == (5000, 0.25)
    assert (settings.record_bytes_max, settings.quorum.ack) == (2000, 2)
    assert {name: topic_configs_of(settings)[name] for name in given} == given


def test_no_limit_is_minus_one_as_in_kafka() -> None:
    assert topic_configs_of(LogSettings())["retention.ms"] == "-1"
    assert log_settings_of({"retention.ms": "-1"}) == {"retention_age_s": "0.0"}


def test_a_setting_without_a_value_has_its_default() -> None:
    changed = LogSettings(retention_bytes=5)
    assert parse_settings(log_settings_of({"retention.bytes": None}), changed) == LogSettings()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("cleanup.policy", "compact", "never compacted"),
        ("compression.type", "zstd", "stay as their producers made them"),
        ("message.timestamp.type", "LogAppendTime", "use CreateTime"),
        ("retention.ms", "soon", "whole number"),
        ("retention.ms", "-2", "-1 for no limit"),
        ("max.message.bytes", "0", "use 1 to"),
        ("flush.ms", "5", "logs have no such setting; there are cleanup.policy"),
    ],
)
def test_what_no_log_has_is_refused_with_what_to_do(name: str, value: str, reason: str) -> None:
    with pytest.raises(InvalidTopicConfig, match=re.escape(reason)):
        log_settings_of({name: value})


def test_replicas_of_a_topic_are_copies_of_its_logs_and_a_majority_acknowledges() -> None:
    quorum = parse_settings(quorum_of("t", 5)).quorum
    assert (quorum.ensemble, quorum.write, quorum.ack) == (5, 5, 3)
    assert quorum_of("t", -1) == {}
    with pytest.raises(InvalidTopic, match="replicas"):
        quorum_of("t", 0)
