"""A whole session at the command line: every command as a process, on one local cluster."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dlog.cli.app import app
from tests.waiting import TEST_S, alive, wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


class Shell:
    """Runs ``dlog`` with the environment that ``dlog up`` tells to export."""

    def __init__(self, uri: str, home: Path) -> None:
        kept = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
        self.environment = {**kept, "HOME": str(home), "DLOG_URI": uri}

    def start(self, *arguments: str, **more: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "dlog.cli", *arguments],
            cwd=ROOT,
            env={**self.environment, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, stdin: bytes = b"", code: int = 0, **more: str) -> bytes:
        """Return what it wrote to stdout, or to stderr if it is expected to fail."""
        process = self.start(*arguments, **more)
        try:
            output, errors = process.communicate(stdin, timeout=TEST_S)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == code, errors.decode()
        assert b"Traceback" not in errors
        return errors if code else output

    def json(self, *arguments: str) -> Any:
        [line] = self.json_lines(*arguments)
        return line

    def json_lines(self, *arguments: str) -> list[Any]:
        result = self.invoke(*arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    def invoke(self, *arguments: str, **more: str) -> Result:
        """Run ``dlog`` in this process: a second faster than to start one."""
        runner = CliRunner(env={**self.environment, **more})
        return runner.invoke(app, list(arguments), prog_name="dlog")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell beside a running ``dlog up``."""
    directory = tmp_path_factory.mktemp("cluster")
    shell = Shell("file:///nowhere", tmp_path_factory.mktemp("home"))
    up = shell.start("up", "--dir", str(directory), "--json")
    try:
        assert up.stdout is not None
        line = up.stdout.readline()
        assert line, up.communicate()[1].decode()
        shell.environment["DLOG_URI"] = json.loads(line)["uri"]
        yield shell
    finally:
        up.terminate()
        try:
            up.communicate(timeout=TEST_S)
        finally:
            up.kill()
            up.communicate()
    assert up.returncode == 0


def test_lines_that_are_appended_come_back_in_order(shell: Shell) -> None:
    assert shell.run("log", "append", "greetings", stdin=b"one\ntwo\nthree\n") == b"2\n"
    assert shell.run("log", "tail", "greetings") == b"one\ntwo\nthree\n"
    assert shell.run("log", "append", "greetings", stdin=b"four") == b"3\n"
    assert shell.run("log", "tail", "greetings", "--start", "2") == b"three\nfour\n"
    assert shell.run("log", "tail", "greetings", "--limit", "1", "--offsets") == b"0\tone\n"
    assert shell.run("log", "tail", "greetings", "--start", "end") == b""
    assert shell.run("log", "tail", "greetings", "--limit", "0") == b""


def test_a_file_is_appended_line_by_line(shell: Shell, tmp_path: Path) -> None:
    lines = [b"line %d of many" % number for number in range(50_000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines) + b"\n")
    found = shell.json("log", "append", "from/file", "-D", r"\n", "--file", str(tmp_path / "lines"))
    assert (found["log"], found["records"], found["last_offset"]) == ("from/file", 50_000, 49_999)
    assert shell.run("log", "tail", "from/file").splitlines() == lines


def test_nothing_appended_is_said_so(shell: Shell) -> None:
    assert json.loads(shell.run("log", "append", "empty", "--json")) == {
        "log": "empty",
        "records": 0,
        "last_offset": None,
        "last_dlsn": None,
    }
    assert shell.run("log", "append", "empty", stdin=b"\n\n") == b"1\n", "empty lines are records"
    assert shell.run("log", "tail", "empty") == b"\n\n"


def test_records_as_json_tell_where_they_are_and_keep_every_byte(shell: Shell) -> None:
    shell.run("log", "append", "bytes", stdin="größe\n".encode() + b"\xff\x00\n")
    first, second = shell.json_lines("log", "tail", "bytes")
    assert (first["offset"], first["value"], first["key"]) == (0, "größe", None)
    assert (second["offset"], second["value"]) == (1, {"base64": "/wA="})
    assert first["dlsn"] < second["dlsn"]
    assert first["timestamp_ms"] > 1_600_000_000_000
    [again] = shell.json_lines("log", "tail", "bytes", "--start", second["dlsn"])
    assert again == second


def test_headers_are_given_to_each_line_and_shown(shell: Shell) -> None:
    given = ["--header", "format=json", "--header", "trace=a=b"]
    shell.run("log", "append", "headed", *given, stdin=b"{}\n[]\n")
    shell.run("log", "append", "headed", stdin=b"plain\n")
    headers = {"format": "json", "trace": "a=b"}
    found = [(each["value"], each["headers"]) for each in shell.json_lines("log", "tail", "headed")]
    assert found == [("{}", headers), ("[]", headers), ("plain", {})]
    assert shell.run("log", "tail", "headed") == b"{}\n[]\nplain\n"


def test_a_log_is_created_listed_shown_truncated_and_deleted(shell: Shell) -> None:
    created = ["log", "create", "eu/orders", "--codec", "zstd", "--retention-age-s", "60"]
    assert shell.json(*created) == {"log": "eu/orders", "created": True}
    assert shell.json("log", "list", "--prefix", "eu/") == ["eu/orders"]
    assert b"eu/orders\n" in shell.run("log", "list")
    shell.run("log", "append", "eu/orders", stdin=b"a\nb\nc\n")
    shown = shell.json("log", "show", "eu/orders")
    assert (shown["first_offset"], shown["next_offset"], shown["records"]) == (0, 3, 3)
    assert shown["settings"]["codec"] == "zstd"
    assert shown["settings"]["retention_age_s"] == 60.0
    assert shown["leader"] is None
    assert len(shown["segments"]) >= 1
    assert b"eu/orders" in shell.run("log", "show", "eu/orders")

    assert shell.run("log", "truncate", "eu/orders", "--before", "2") == b"2\n"
    assert shell.json("log", "show", "eu/orders")["first_offset"] == 2
    assert shell.run("log", "tail", "eu/orders") == b"c\n"
    assert b"was trimmed; " in shell.run("log", "tail", "eu/orders", "--start", "0", code=1)

    shell.run("log", "delete", "eu/orders", stdin=b"n\n", code=1)
    assert shell.json("log", "list", "--prefix", "eu/") == ["eu/orders"]
    shell.run("log", "delete", "eu/orders", "--yes")
    assert shell.json("log", "list", "--prefix", "eu/") == []


def test_following_shows_what_is_appended_later_until_it_is_interrupted(shell: Shell) -> None:
    shell.run("log", "append", "followed", stdin=b"before\n")
    tail = shell.start("log", "tail", "followed", "-f")
    try:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"before\n"
        shell.run("log", "append", "followed", stdin=b"after\n")
        assert tail.stdout.readline() == b"after\n"
        tail.send_signal(signal.SIGINT)
        output, errors = tail.communicate(timeout=TEST_S)
        assert (tail.returncode, output) == (130, b"")
        assert b"Traceback" not in errors
    finally:
        tail.kill()
        tail.communicate()


def test_lines_of_a_pipe_are_appended_as_they_come(shell: Shell) -> None:
    shell.json("log", "create", "piped")
    append = shell.start("log", "append", "piped")
    tail = shell.start("log", "tail", "piped", "-f")
    try:
        assert append.stdin is not None
        assert tail.stdout is not None
        for line in (b"first\n", b"second\n"):
            append.stdin.write(line)
            append.stdin.flush()
            assert tail.stdout.readline() == line, "before the pipe is closed"
        append.stdin.write(b"no newline at the end")
        output, _ = append.communicate(timeout=TEST_S)
        assert output == b"2\n"
    finally:
        for process in (append, tail):
            process.kill()
            process.communicate()


def test_a_writer_that_is_superseded_says_what_it_had_appended(shell: Shell) -> None:
    shell.json("log", "create", "contended")
    first = shell.start("log", "append", "contended")
    tail = shell.start("log", "tail", "contended", "-f")
    try:
        assert first.stdin is not None
        assert tail.stdout is not None
        first.stdin.write(b"mine\n")
        first.stdin.flush()
        assert tail.stdout.readline() == b"mine\n"
        errors = shell.run("log", "append", "contended", stdin=b"yours\n", code=1)
        assert b"log 'contended' is being written by " in errors
        assert b"--take-over" in errors
        first.stdin.write(b"still mine\n")
        first.stdin.flush()
        assert tail.stdout.readline() == b"still mine\n"
        taken = shell.run("log", "append", "contended", "--take-over", stdin=b"yours\n")
        assert taken == b"2\n"
        _, errors = first.communicate(b"too late\n", timeout=TEST_S)
        assert first.returncode == 1
        assert b"2 records were appended, the last at offset 1" in errors
        assert b"Traceback" not in errors
        assert tail.stdout.readline() == b"yours\n"
        assert shell.run("log", "tail", "contended") == b"mine\nstill mine\nyours\n"
    finally:
        for process in (first, tail):
            process.kill()
            process.communicate()


def test_a_reader_of_our_output_may_go_away(shell: Shell) -> None:
    shell.run("log", "append", "long", stdin=b"".join(b"%d\n" % n for n in range(200_000)))
    tail = shell.start("log", "tail", "long")
    assert tail.stdout is not None
    assert tail.stderr is not None
    assert tail.stdout.readline() == b"0\n"
    tail.stdout.close()
    assert tail.wait(TEST_S) == 0
    assert tail.stderr.read() == b""
    tail.stderr.close()
    assert tail.stdin is not None
    tail.stdin.close()


def test_ledgers_are_shown_read_and_recovered(shell: Shell) -> None:
    shell.run("log", "append", "for/ledgers", stdin=b"a\nb\n")
    [segment] = shell.json("log", "show", "for/ledgers")["segments"]
    ledger = str(segment["ledger"])
    assert segment["ledger"] in shell.json("ledger", "list")
    shown = shell.json("ledger", "show", ledger)
    assert (shown["ensemble"], shown["write_quorum"], shown["ack_quorum"]) == (3, 3, 2)
    assert {"secret", "access_key"}.isdisjoint(shown)
    assert [fragment["first_entry"] for fragment in shown["fragments"]] == [0]
    bookies = [each["bookie"] for each in shell.json("bookie", "list")]
    assert sorted(shown["fragments"][0]["bookies"]) == bookies
    assert b"E=3 Qw=3 Qa=2" in shell.run("ledger", "show", ledger)
    entries = shell.json_lines("ledger", "read", ledger)
    assert [entry["entry"] for entry in entries] == list(range(len(entries)))
    assert len(entries) >= 1
    assert shell.json_lines("ledger", "read", ledger, "--last", "0") == entries[:1]
    recovered = shell.json("ledger", "recover", ledger)
    assert (recovered["state"], recovered["last_entry"]) == ("CLOSED", len(entries) - 1)
    assert shell.run("log", "append", "for/ledgers", stdin=b"c\n") == b"2\n"
    assert shell.run("log", "tail", "for/ledgers") == b"a\nb\nc\n"


def test_bookies_are_listed(shell: Shell) -> None:
    found = shell.json("bookie", "list")
    begins = [bookie["bookie"].rpartition("-")[0] for bookie in found]
    assert begins == ["bookie-0", "bookie-1", "bookie-2"]
    assert all(bookie["address"].startswith("127.0.0.1:") for bookie in found)
    assert b"bookie-1" in shell.run("bookie", "list")


def test_a_bookie_can_be_added_from_the_command_line(shell: Shell, tmp_path: Path) -> None:
    bookie = shell.start("bookie", "start", "--dir", str(tmp_path / "b"), "--id", "extra")

    def listed() -> list[str]:
        return [each["bookie"] for each in shell.json("bookie", "list")]

    try:
        wait_until(lambda: "extra" in listed(), "the bookie is registered")
        bookie.terminate()
        bookie.communicate(timeout=TEST_S)
        assert bookie.returncode == 0
        assert "extra" not in listed(), "it took its registration back"
    finally:
        bookie.kill()
        bookie.communicate()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["log", "show", "absent"], "there is no log 'absent'"),
        (["log", "tail", "absent"], "there is no log 'absent'"),
        (["log", "delete", "absent", "--yes"], "there is no log 'absent'"),
        (["log", "create", ".hidden"], "begins with a dot"),
        (["log", "create", ""], "it is empty"),
        (["log", "create", "n" * 256], "255 are allowed"),
        (["log", "create", "a\nb"], "control characters"),
        (["log", "create", "q", "--write-quorum", "4"], "smaller than the write quorum"),
        (["log", "create", "r", "--record-bytes-max", "0"], "record_bytes_max"),
        (["ledger", "show", "999999"], "ledger 999999 does not exist"),
        (["ledger", "recover", "999999"], "ledger 999999 does not exist"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_failure_is_one_sentence_on_stderr_and_exits_with_1(
    shell: Shell, arguments: list[str], sentence: str
) -> None:
    result = shell.invoke(*arguments)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_log_is_not_created_twice(shell: Shell) -> None:
    shell.json("log", "create", "twice")
    assert "already" in shell.invoke("log", "create", "twice").stderr


def test_append_creates_no_log_if_told_so(shell: Shell) -> None:
    errors = shell.run("log", "append", "absent", "--no-create", stdin=b"x\n", code=1)
    assert b"there is no log 'absent'" in errors
    assert "absent" not in shell.json("log", "list")


def test_an_interrupted_append_says_what_it_had_appended(shell: Shell) -> None:
    shell.json("log", "create", "interrupted")
    append = shell.start("log", "append", "interrupted")
    tail = shell.start("log", "tail", "interrupted", "-f")
    try:
        assert append.stdin is not None
        assert tail.stdout is not None
        append.stdin.write(b"one\ntwo\n")
        append.stdin.flush()
        assert tail.stdout.readline() == b"one\n"
        append.send_signal(signal.SIGINT)
        assert append.wait(TEST_S) == 130
        assert append.stderr is not None
        assert b"2 records were appended, the last at offset 1" in append.stderr.read()
    finally:
        for process in (append, tail):
            process.kill()
            process.communicate()


def test_progress_is_shown_to_a_terminal_only(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"line\n" * 1000)
    arguments = ["log", "append", "shown", "--file", str(tmp_path / "lines")]
    terminal, end = os.openpty()
    try:
        append = subprocess.Popen(
            [sys.executable, "-m", "dlog.cli", *arguments],
            cwd=ROOT,
            env={**shell.environment, "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=end,
        )
        os.close(end)
        output, _ = append.communicate(timeout=TEST_S)
        assert output == b"999\n"
        assert b"appending" in os.read(terminal, 65536)
    finally:
        os.close(terminal)


def test_verifying_shows_a_terminal_how_far_it_is(shell: Shell) -> None:
    shell.run("log", "append", "verified", stdin=b"".join(b"%d\n" % n for n in range(1000)))
    terminal, end = os.openpty()
    try:
        verify = subprocess.Popen(
            [sys.executable, "-m", "dlog.cli", "log", "verify", "verified"],
            cwd=ROOT,
            env={**shell.environment, "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=end,
        )
        os.close(end)
        output, _ = verify.communicate(timeout=TEST_S)
        assert b"log 'verified' is healthy" in output
        assert b"verifying verified" in os.read(terminal, 65536)
    finally:
        os.close(terminal)


def test_a_janitor_works_beside_the_cluster_until_it_is_told_to_stop(shell: Shell) -> None:
    shell.run("log", "append", "looked/after", stdin=b"a\n")
    janitor = shell.start("janitor", "run", "--interval-s", "0.2", "--json")
    try:
        assert janitor.stdout is not None
        for _ in range(2):
            done = json.loads(janitor.stdout.readline())
            assert done["logs"] >= 1
            assert done["troubles"] == []
        janitor.terminate()
        _, errors = janitor.communicate(timeout=TEST_S)
        assert (janitor.returncode, errors) == (0, b"")
    finally:
        janitor.kill()
        janitor.communicate()
    assert shell.run("log", "tail", "looked/after") == b"a\n"


def test_watching_shows_a_log_as_soon_as_it_is_made(shell: Shell) -> None:
    watch = shell.start("log", "watch", "--prefix", "watched/")
    try:
        assert watch.stdout is not None
        shell.run("log", "append", "watched/one", stdin=b"a\n")
        assert watch.stdout.readline() == b"added\twatched/one\n"
        shell.run("log", "rename", "watched/one", "elsewhere")
        assert watch.stdout.readline() == b"removed\twatched/one\n"
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=TEST_S)
        assert watch.returncode == 130
    finally:
        watch.kill()
        watch.communicate()


def test_more_bookies_than_there_are_is_told_at_the_first_append(shell: Shell) -> None:
    shell.json("log", "create", "wide", "--ensemble", "9")
    errors = shell.run("log", "append", "wide", stdin=b"x\n", code=1)
    assert b"9 bookies are needed" in errors


def test_a_record_over_the_limit_is_refused_and_those_before_it_stay(shell: Shell) -> None:
    shell.json("log", "create", "small", "--record-bytes-max", "10")
    errors = shell.run("log", "append", "small", stdin=b"short\nmuch too long\n", code=1)
    assert b"over the limit of 10" in errors
    assert b"1 record was appended, the last at offset 0" in errors
    assert shell.run("log", "tail", "small") == b"short\n"


def test_the_traceback_is_there_for_debugging(shell: Shell) -> None:
    process = shell.start("log", "show", "absent", DLOG_DEBUG="1")
    _, errors = process.communicate(timeout=TEST_S)
    assert process.returncode == 1
    assert b"Traceback" in errors


def test_an_unreachable_metadata_store_is_told_in_time(shell: Shell) -> None:
    errors = shell.run("log", "list", "--uri", "zk://127.0.0.1:1/dlog", code=1, DLOG_TIMEOUT_S="1")
    assert b"did not answer" in errors


def test_a_second_cluster_in_the_same_directory_is_refused(shell: Shell) -> None:
    directory = shell.environment["DLOG_URI"].removeprefix("file://").removesuffix("/metadata")
    errors = shell.run("up", "--dir", directory, code=1)
    assert b"runs in" in errors
    assert b"already (process" in errors


def test_up_tells_people_what_to_export_and_ends_all_at_ctrl_c(tmp_path: Path) -> None:
    shell = Shell("file:///nowhere", tmp_path)
    up = shell.start("up", "--bookies", "1")
    try:
        assert up.stdout is not None
        shown: list[bytes] = []
        while not shown or not shown[-1].startswith(b"Ctrl-C"):
            line = up.stdout.readline()
            assert line, up.communicate()[1].decode()
            shown.append(line)
        text = b"".join(shown).decode()
        assert f"export DLOG_URI=file://{tmp_path}/.dlog/local/metadata   # the default" in text
        [row] = [line for line in text.splitlines() if line.strip().startswith("bookie-0")]
        pid = int(row.split()[2])
        assert alive(pid)
        shell.environment.pop("DLOG_URI")
        [listed] = shell.json("bookie", "list")
        assert listed["bookie"].startswith("bookie-0-")
        assert row.split()[0] == listed["bookie"]
        asked = shell.json("bookie", "status", "bookie-0")
        assert asked["bookie"] == listed["bookie"], "a name may be shortened"
        up.send_signal(signal.SIGINT)
        _, errors = up.communicate(timeout=TEST_S)
        assert up.returncode == 0
        assert b"the cluster is down" in errors
        assert not alive(pid)
    finally:
        up.kill()
        up.communicate()


def test_up_starts_a_bookie_again_that_died_and_not_one_that_was_stopped(
    tmp_path: Path,
) -> None:
    up = Shell("file:///nowhere", tmp_path).start("up", "--bookies", "2", "--json")
    try:
        assert up.stdout is not None
        assert up.stderr is not None
        pids = [bookie["pid"] for bookie in json.loads(up.stdout.readline())["bookies"]]
        os.kill(pids[0], signal.SIGKILL)
        line = up.stderr.readline().decode()
        assert "bookie-0 ended with exit code -9 and was started again, as process " in line
        again = int(line.split("as process ")[1].split(";")[0])
        assert again != pids[0]
        assert alive(again)
        os.kill(pids[1], signal.SIGTERM)
        line = up.stderr.readline().decode()
        assert "bookie-1 ended with exit code 0 and is not started again: it was stopped" in line
        assert up.poll() is None
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=TEST_S)
        assert up.returncode == 0
        assert not alive(again)
    finally:
        up.kill()
        up.communicate()


def test_up_archives_logs_that_have_object_storage(shell: Shell, tmp_path: Path) -> None:
    storage = tmp_path / "objects"
    shell.run("log", "create", "archived", "--set", f"archive=file://{storage}")
    shell.run("log", "append", "archived", stdin=b"one\ntwo\n")

    def is_archived() -> bool:
        segments = shell.json("log", "show", "archived")["segments"]
        return bool(segments) and not any(each["on_bookies"] for each in segments)

    wait_until(is_archived, "the archiver has moved it", timeout_s=60.0)
    assert shell.run("log", "tail", "archived").split() == [b"one", b"two"]
    directory = shell.environment["DLOG_URI"].removeprefix("file://").removesuffix("/metadata")
    assert Path(directory, "archiver.log").exists(), "a process of its own writes there"
