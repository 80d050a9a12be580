"""``dlog log show|truncate|count|seek|dump|tail``: what is in a log, and what goes."""

from collections.abc import Iterator
from typing import Any

import pytest

import dlog
from tests.dlog.cli.cli_shell import CliShell, cli_shell


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        made.write("many")  # values 0 to 29, txids 10 n, timestamps 1000 n, three segments
        yield made


def values(shell: CliShell, *arguments: str) -> list[int]:
    return [int(line) for line in shell.run("log", "tail", *arguments).splitlines()]


def test_a_log_is_shown_segment_by_segment(shell: CliShell) -> None:
    shown = shell.json("log", "show", "many")
    assert (shown["first_offset"], shown["next_offset"], shown["records"]) == (0, 30, 30)
    assert (shown["last_txid"], shown["sealed"], shown["leader"]) == (290, False, None)
    assert shown["epoch"] > 0
    assert shown["owner"]
    segments = shown["segments"]
    assert [each["first_offset"] for each in segments] == [0, 10, 20]
    assert [each["next_offset"] for each in segments] == [10, 20, 30]
    assert [each["records"] for each in segments] == [10, 10, 10]
    assert [each["last_timestamp_ms"] for each in segments] == [9000, 19000, 29000]
    assert {each["state"] for each in segments} == {"sealed"}
    assert shown["bytes"] == sum(each["bytes"] for each in segments)
    text = shell.run("log", "show", "many")
    for segment in segments:
        assert f" {segment['ledger']} " in text
    assert "1970-01-01 00:00:29Z" in text
    assert shown["owner"] in text


def test_a_log_that_is_being_written_is_shown_up_to_its_end(shell: CliShell) -> None:
    with dlog.Log.open("living", uri=shell.uri, owner="me") as log:
        for number in range(3):
            log.append(b"%d" % number)
        log.roll()
        log.append(b"3")
        log.append(b"4")
        log.flush()
        assert shell.run("log", "tail", "living").split() == ["0", "1", "2", "3", "4"]
        shown = shell.json("log", "show", "living")
        assert (shown["next_offset"], shown["owner"]) == (5, "me")
        last = shown["segments"][-1]
        assert (last["state"], last["next_offset"], last["bytes"]) == ("open", None, None)
        lines = shell.run("log", "show", "living").splitlines()
        assert lines[-1].split()[2:6] == ["open", "3", "4", "2"]
    lines = shell.run("log", "show", "living").splitlines()
    assert lines[-1].split()[2:6] == ["sealed", "3", "4", "2"]


def test_a_log_without_records_is_shown(shell: CliShell) -> None:
    shell.run("log", "create", "bare")
    assert shell.json("log", "show", "bare")["segments"] == []
    assert "none" in shell.run("log", "show", "bare")


def truncated(shell: CliShell, *how: str) -> dict[str, Any]:
    """Return what the dry run says, after the same was done and is what it said."""
    log = f"cut{''.join(how)}".replace(":", "-").replace(".", "-")
    shell.write(log)
    ledgers = [each["ledger"] for each in shell.json("log", "show", log)["segments"]]
    plan: dict[str, Any] = shell.json("log", "truncate", log, *how, "--dry-run")
    assert plan["dry_run"] is True
    assert [each["ledger"] for each in plan["segments"]] == plan["ledgers"]
    shown = shell.run("log", "truncate", log, *how, "--dry-run")
    for ledger in plan["ledgers"]:
        assert str(ledger) in shown
    assert shell.json("log", "show", log)["first_offset"] == 0, "nothing was done"
    assert shell.run("log", "truncate", log, *how) == f"{plan['first_offset']}\n"
    after = shell.json("log", "show", log)
    assert after["first_offset"] == plan["first_offset"]
    kept = [each["ledger"] for each in after["segments"]]
    assert plan["ledgers"] + kept == ledgers, "the ledgers that were named are gone"
    assert set(plan["ledgers"]).isdisjoint(shell.json("ledger", "list"))
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "first", "ledgers"),
    [
        (["--before", "25"], 25, 2),
        (["--before", "20"], 20, 2),
        (["--before", "txid:110"], 11, 1),
        (["--before-time", "12000"], 12, 1),
        (["--before", "time:12001"], 13, 1),
        (["--keep-bytes", "1"], 20, 2),
        (["--keep-bytes", "1G"], 0, 0),
        (["--keep-age", "1h"], 30, 2),
        (["--keep-age", "5000w"], 0, 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_log_is_truncated_by_every_measure_after_a_dry_run(
    shell: CliShell, how: list[str], first: int, ledgers: int
) -> None:
    plan = truncated(shell, *how)
    assert (plan["first_offset"], plan["records"], len(plan["ledgers"])) == (first, first, ledgers)


def test_a_dry_run_tells_where_a_segment_is_cut(shell: CliShell) -> None:
    assert shell.json("log", "truncate", "many", "--before", "5", "--dry-run")["inside"] == 1
    assert "cut inside" in shell.run("log", "truncate", "many", "--before", "5", "--dry-run")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--before", "1", "--keep-age", "1h"],
        ["--before", "start"],
        ["--before", "-1"],
        ["--before", "soon"],
        ["--before-time", "soon"],
        ["--keep-bytes", "some"],
        ["--keep-age", "long"],
        ["--dry-run"],
    ],
    ids=" ".join,
)
def test_a_truncation_that_says_nothing_or_two_things_is_a_usage_error(
    shell: CliShell, arguments: list[str]
) -> None:
    assert "Usage:" in shell.refused("log", "truncate", "many", *arguments, code=2)
    assert shell.json("log", "show", "many")["first_offset"] == 0


def test_a_truncation_beyond_the_end_is_refused(shell: CliShell) -> None:
    for more in ([], ["--dry-run"]):
        reason = shell.refused("log", "truncate", "many", "--before", "99", *more)
        assert "the log ends at offset 30" in reason
    assert "there is no log" in shell.refused("log", "truncate", "absent", "--before", "0")


def test_records_are_counted_between_any_two_places(shell: CliShell) -> None:
    assert shell.run("log", "count", "many") == "30\n"
    assert shell.run("log", "count", "many", "--start", "txid:100") == "20\n"
    assert shell.run("log", "count", "many", "--start", "2:0:0", "--stop", "3:0:0") == "10\n"
    assert shell.run("log", "count", "many", "--start", "time:5000", "--stop", "1000") == "25\n"
    assert shell.run("log", "count", "many", "--start", "20", "--stop", "10") == "0\n"
    assert shell.json("log", "count", "many", "--stop", "7") == {
        "log": "many",
        "first_offset": 0,
        "next_offset": 7,
        "records": 7,
    }


def test_counting_by_reading_counts_bytes_too(shell: CliShell) -> None:
    found = shell.json("log", "count", "many", "--read")
    assert (found["records"], found["value_bytes"], found["key_bytes"]) == (30, 50, 60)
    found = shell.json("log", "count", "many", "--read", "--start", "5", "--stop", "12")
    assert (found["records"], found["value_bytes"], found["key_bytes"]) == (7, 9, 14)
    assert "value_bytes" in shell.run("log", "count", "many", "--read")
    shell.run("log", "create", "none")
    assert shell.json("log", "count", "none", "--read")["records"] == 0
    assert "there is no log" in shell.refused("log", "count", "absent")
    shell.refused("log", "count", "many", "--stop", "never", code=2)


@pytest.mark.parametrize("position", ["11", "txid:110", "txid:101", "time:11000", "time:10001"])
def test_any_way_to_name_a_record_leads_to_it(shell: CliShell, position: str) -> None:
    found = shell.json("log", "seek", "many", position)
    assert (found["offset"], found["timestamp_ms"], found["txid"]) == (11, 11000, 110)
    assert found["key"] == "k2"
    assert shell.json("log", "seek", "many", found["dlsn"]) == found
    text = shell.run("log", "seek", "many", position)
    assert found["dlsn"] in text
    assert "11000 ms" in text


def test_seeking_what_is_not_there_yet_tells_the_end(shell: CliShell) -> None:
    for position in ("end", "30", "txid:291", "time:99999999"):
        found = shell.json("log", "seek", "many", position)
        assert (found["offset"], found["dlsn"], found["txid"]) == (30, None, None)
    assert "no record yet" in shell.run("log", "seek", "many", "end")
    assert "the log ends at offset 30" in shell.refused("log", "seek", "many", "31")
    assert "no such segment" in shell.refused("log", "seek", "many", "9:0:0")
    shell.refused("log", "seek", "many", "9:0", code=2)
    shell.refused("log", "seek", "many", code=2)


def test_a_dump_shows_each_entry_once(shell: CliShell) -> None:
    entries = shell.json_lines("log", "dump", "many")
    assert sum(each["records"] for each in entries) == 30
    ends = [each["next_offset"] for each in entries]
    assert [each["first_offset"] for each in entries] == [0, *ends[:-1]]
    assert {each["segment"] for each in entries} == {1, 2, 3}
    assert entries[0]["codec"] == "none"
    assert entries[0]["first_txid"] == 0
    assert (entries[0]["first_timestamp_ms"], entries[-1]["last_timestamp_ms"]) == (0, 29000)
    assert entries[-1]["last_txid"] == 290
    lines = shell.run("log", "dump", "many").splitlines()
    assert len(lines) == 1 + len(entries)
    assert lines[0].startswith("dlsn\toffset\trecords")
    assert lines[1].startswith("1:0:0\t0\t")


def test_a_dump_of_a_part_shows_its_records(shell: CliShell) -> None:
    entries = shell.json_lines("log", "dump", "many", "--start", "7", "--stop", "9", "--records")
    records = [record for each in entries for record in each["record_list"]]
    assert [(each["offset"], each["value"]) for each in records] == [(7, "7"), (8, "8")]
    text = shell.run("log", "dump", "many", "--start", "7", "--stop", "9", "--records")
    assert "  7\t70\tk1\t7\n" in text
    assert "there is no log" in shell.refused("log", "dump", "absent")
    shell.refused("log", "dump", "many", "--start", "x", code=2)


def test_a_tail_begins_and_ends_where_it_is_told(shell: CliShell) -> None:
    assert values(shell, "many") == list(range(30))
    assert values(shell, "many", "--from-time", "25000") == [25, 26, 27, 28, 29]
    assert values(shell, "many", "--from-time", "1970-01-01T00:00:28") == [28, 29]
    assert values(shell, "many", "--last", "3") == [27, 28, 29]
    assert values(shell, "many", "--last", "1000") == list(range(30))
    assert values(shell, "many", "--last", "0") == []
    assert values(shell, "many", "--last", "3", "--limit", "1") == [27]
    assert values(shell, "many", "--start", "8", "--stop", "12") == [8, 9, 10, 11]
    assert values(shell, "many", "-f", "--last", "2", "--stop", "30") == [28, 29]
    assert values(shell, "many", "--start", "time:28000", "--stop", "txid:290") == [28]
    shell.write("short", end=4)
    shell.run("log", "truncate", "short", "--before", "2")
    assert values(shell, "short", "--last", "9") == [2, 3]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--last", "-1"],
        ["--last", "2", "--start", "end"],
        ["--from-time", "1h", "--start", "end"],
        ["--from-time", "soon"],
        ["--stop", "never"],
        ["--exclusive"],
    ],
    ids=" ".join,
)
def test_a_tail_that_makes_no_sense_is_a_usage_error(shell: CliShell, arguments: list[str]) -> None:
    assert "Usage:" in shell.refused("log", "tail", "many", *arguments, code=2)


@pytest.mark.parametrize("end", [("--limit", "2"), ("--stop", "2")])
def test_a_consumer_is_not_ahead_of_what_was_printed_although_more_was_read(
    shell: CliShell, end: tuple[str, str]
) -> None:
    log = f"read-ahead{end[0]}"
    with dlog.Log.open(log, uri=shell.uri) as writer:
        writer.append_many([b"0", b"1", b"2", b"3"])  # one entry: read at once
    assert values(shell, log, "--consumer", "c", *end) == [0, 1]
    assert values(shell, log, "--consumer", "c") == [2, 3]


def test_a_tail_with_a_consumer_goes_on_where_it_was(shell: CliShell) -> None:
    shell.write("eaten")
    assert values(shell, "eaten", "--consumer", "c", "--start", "5", "--limit", "2") == [5, 6]
    assert values(shell, "eaten", "--consumer", "c", "--limit", "3") == [7, 8, 9]
    assert values(shell, "eaten", "--consumer", "c", "--exclusive", "--stop", "12") == [10, 11]
    assert values(shell, "eaten", "--consumer", "c") == list(range(12, 30))
    assert values(shell, "eaten", "--consumer", "c") == []
    assert values(shell, "eaten", "--consumer", "new", "--last", "1") == [29]
    shell.run("consumer", "reset", "eaten", "c", "--to", "28")
    assert values(shell, "eaten", "--consumer", "c") == [28, 29]
