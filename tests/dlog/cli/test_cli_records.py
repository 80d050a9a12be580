"""Records in and out at the shell, as somebody who knows kcat expects it."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlog
from dlog.cli.log.append import InputRow, JsonLines, Messages, parse_delimiter
from dlog.cli.log.tail import compile_format
from dlog.cli.perf import Times, percentile
from dlog.headers import Headers, encode_headers
from dlog.position import Place, Record
from ledger.errors import InvalidValue
from tests.dlog.cli.cli_shell import CliShell, cli_shell

HEADERS = Headers(encode_headers([("a", b"1"), ("b", None), ("a", b"2")]) or b"")
RECORD = Record(7, Place(2, 3, 5), 1700, 9, b"k", b"v\xff", HEADERS)
BARE = Record(8, Place(2, 3, 5), 1700, None, None, b"")


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


def test_what_tail_prints_as_json_is_appended_as_a_copy(shell: CliShell, tmp_path: Path) -> None:
    with dlog.Log.open("original", uri=shell.uri) as log:
        log.append(b"one", key=b"k", txid=5, timestamp_ms=1000, headers={"h": b"\xff"})
        log.append(b"\xfe", key=b"", timestamp_ms=2000)
        log.append("größe\n".encode(), txid=7, timestamp_ms=3000, headers={"a": b"1", "b": None})
        log.append(b"pairs", timestamp_ms=4000, headers=[("a", b"\xff"), ("b", None), ("a", b"")])
    (tmp_path / "lines").write_text(shell.run("log", "tail", "original", "--json"))
    given = ("--input", "json", "--file", str(tmp_path / "lines"))
    done = shell.json("log", "append", "copy", *given)
    assert (done["records"], done["last_offset"]) == (4, 3)
    original, copy = (shell.json_lines("log", "tail", log) for log in ("original", "copy"))
    for each in (*original, *copy):
        del each["dlsn"]
    assert copy == original
    assert copy[2]["headers"] == {"a": "1", "b": None}
    assert copy[3]["headers"] == [["a", {"base64": "/w=="}], ["b", None], ["a", ""]]


def test_keys_and_other_ends_than_the_lines_are_taken_as_kcat_takes_them(
    shell: CliShell, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(b"k1:v1;k2:v:2;none;:empty")
    options = ["-K", ":", "-D", ";", "--file", str(tmp_path / "in")]
    options += [f"--header={header}" for header in ("a=b", "null", "a=")]
    assert shell.run("log", "append", "keyed", *options) == "3\n"
    with dlog.Log.tail("keyed", uri=shell.uri, follow=False) as reader:
        found = [(record.key, record.value, record.headers.pairs()) for record in reader]
    keyed = [(b"k1", b"v1"), (b"k2", b"v:2"), (None, b"none"), (b"", b"empty")]
    assert found == [
        (key, value, (("a", b"b"), ("null", None), ("a", b""))) for key, value in keyed
    ]


def test_a_format_prints_what_kcat_would(shell: CliShell) -> None:
    shell.write("formatted", end=3)
    form = r"%t %o %k:%s %K %S %x %T %d%%\n"
    assert shell.run("log", "tail", "formatted", "--format", form, "--limit", "1") == (
        "formatted 0 k0:0 2 1 0 0 1:0:0%\n"
    )
    assert "%q is unknown" in shell.refused("log", "tail", "x", "--format", "%q", code=2)


def test_a_format_shows_no_sentinel_for_what_a_record_has_not() -> None:
    assert compile_format("%x|%k|%h|%K", "log")(BARE) == b"|||-1"
    assert compile_format("%x|%k|%h|%s", "log")(RECORD) == b"9|k|a=1,b,a=2|v\xff"


def test_the_namespace_may_be_named_before_the_command(shell: CliShell) -> None:
    shell.run("log", "create", "here")
    before = os.environ.get("DLOG_URI")
    result = shell.invoke("--uri", shell.uri, "log", "list", DLOG_URI="file:///nowhere")
    assert result.exit_code == 0
    assert "here" in result.stdout.splitlines()
    result = shell.invoke("--uri", "file:///nowhere", "log", "list", "--uri", shell.uri)
    assert "here" in result.stdout.splitlines(), "what the command is given counts more"
    assert os.environ.get("DLOG_URI") == before


def test_a_long_list_has_end_size_rate_and_leader(
    shell: CliShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.cli.log.overview.RATE_S", 0.01)
    shell.write("listed/a", end=25)
    shell.run("log", "create", "listed/b")
    [found] = shell.json_lines("log", "list", "-l", "--prefix", "listed/")
    assert [(each["log"], each["next_offset"]) for each in found] == [
        ("listed/a", 25),
        ("listed/b", 0),
    ]
    assert found[0]["bytes"] > 0 == found[1]["bytes"]
    assert found[0]["leader"] is None
    shown = shell.run("log", "list", "-l", "--prefix", "listed/").splitlines()
    assert shown[0].split() == ["log", "first", "end", "bytes", "records/s", "leader"]
    assert shown[2].split() == ["listed/b", "0", "0", "0", "0", "-"]


def test_a_cluster_is_measured_by_its_users(shell: CliShell) -> None:
    [done] = shell.json_lines("perf", "append", "perf", "--records", "500", "--size", "1K")
    assert (done["records"], done["bytes"]) == (500, 500 << 10)
    assert 0 < done["p50_ms"] <= done["p99_ms"] <= done["max_ms"]
    assert done["records_per_s"] > 0
    [read] = shell.json_lines("perf", "tail", "perf")
    assert (read["records"], read["bytes"]) == (500, 500 << 10)
    [paced] = shell.json_lines("perf", "append", "perf", "--rate", "1000", "--for", "20ms")
    assert 0 < paced["records"] < 500


def test_latencies_that_are_thinned_keep_their_percentiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.cli.perf.TIMES_MAX", 100)
    times = Times()
    for number in range(10_000):
        times.add(float(number))
    assert times.seen == 10_000
    assert len(times.kept) < 100
    assert 4500 < percentile(sorted(times.kept), 0.5) < 5500


def test_nothing_that_was_appended_has_no_last_offset(shell: CliShell, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    arguments = ("log", "append", "nothing", "--file", str(tmp_path / "empty"))
    assert shell.run(*arguments) == ""
    assert shell.json(*arguments)["last_offset"] is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x", "not JSON"),
        ("[]", 'use an object with "value"'),
        ("{}", 'use an object with "value"'),
        ('{"value": 5}', "neither text nor"),
        ('{"value": {"base64": "?"}}', "neither text nor"),
        ('{"value": "x", "txid": "5"}', "txid is a whole number"),
        ('{"value": "x", "timestamp_ms": true}', "timestamp_ms is a whole number"),
        ('{"value": "x", "headers": [1]}', "headers are an object"),
        ('{"value": "x", "headers": [["a"]]}', "headers are an object"),
        ('{"value": "x", "headers": 5}', "headers are an object"),
        ('{"value": "x", "headers": "ab"}', "headers are an object"),
        ('{"value": "x", "headers": [[1, "a"]]}', "headers are an object"),
        ('{"value": "x", "colour": 1}', "'colour' is unknown; a record has value, key"),
    ],
)
def test_a_line_that_is_no_record_is_one_sentence(line: str, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        JsonLines().row(line.encode())


def test_a_line_of_json_may_leave_out_all_but_the_value() -> None:
    encoded = base64.b64encode(b"\xff").decode()
    line = json.dumps({"value": {"base64": encoded}, "offset": 5, "dlsn": "1:0:0"})
    assert JsonLines().row(line.encode()) == InputRow(b"\xff")
    assert JsonLines([("a", b"1")]).row(b'{"value": "", "headers": {"b": "2"}}') == InputRow(
        b"", headers=[("a", b"1"), ("b", b"2")]
    )


def test_a_delimiter_may_be_more_than_one_character() -> None:
    assert parse_delimiter(r"\t", "-D") == b"\t"
    assert parse_delimiter(r"\x1e\0", "-D") == b"\x1e\0"
    assert parse_delimiter("--", "-D") == b"--"
    assert Messages(key_delimiter=b"--").row(b"a--b--c") == InputRow(b"b--c", b"a")
    for nothing in ("", "\\", r"\x"):
        with pytest.raises(InvalidValue, match="-D="):
            parse_delimiter(nothing, "-D")


def test_json_is_output_alone(shell: CliShell, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("plain\n")
    assert shell.json("log", "append", "plain", "--file", str(tmp_path / "lines"))["records"] == 1
    told = shell.refused("log", "append", "plain", "--input", "json", "-D", ";", code=2)
    assert "do not give delimiters" in told


def test_the_log_of_a_leader_is_not_appended_to_unless_it_is_to_lose_it(
    shell: CliShell, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("oops\n")
    append = ("log", "append", "led", "--file", str(tmp_path / "lines"))
    with dlog.Standby.open("led", lambda _: None, uri=shell.uri, candidate="app") as standby:
        log = standby.promote()
        log.append(b"one")
        assert "app leads log 'led', and would lose it" in shell.refused(*append)
        assert log.append(b"two").offset == 1
        assert shell.run(*append, "--take-over") == "2\n"
        with pytest.raises((dlog.LostOwnership, dlog.AppendOutcomeUnknown)):
            log.append(b"three")


def test_a_log_that_another_program_has_open_is_not_appended_to(
    shell: CliShell, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("x\n")
    append = ("log", "append", "busy", "--file", str(tmp_path / "lines"))
    with dlog.Log.open("busy", uri=shell.uri, owner="billing@host") as log:
        log.append(b"one")
        assert "log 'busy' is being written by billing@host" in shell.refused(*append)
        assert log.append(b"two").offset == 1
    assert shell.run(*append) == "2\n"
