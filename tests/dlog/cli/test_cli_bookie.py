"""``dlog bookie`` on the files of a bookie that ran and was stopped, beside its metadata store."""

import asyncio
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bookie.disk.port import RealDisk
from bookie.identity.cookie import read_cookie
from dlog.cli.app import app
from ledger import LedgerClient, Quorum
from ledger.errors import LedgerFenced
from ledger.ids import LedgerId
from tests.bookie.processes import bookie
from tests.namespaces import make
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

ENTRIES = 300
ONE = Quorum(1, 1, 1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DLOG_URI", "DLOG_CONFIG", "DLOG_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@dataclass(frozen=True)
class Used:
    """A bookie that was stopped: two ledgers with entries, one of them recovered."""

    root: Path
    open_ledger: int
    closed_ledger: int

    @property
    def uri(self) -> str:
        return f"file://{self.root}/metadata"

    @property
    def directories(self) -> list[str]:
        main, journal = self.root / "main", self.root / "journal"
        ledgers = [self.root / "ledgers-0", self.root / "ledgers-1"]
        options = [f"--dir={main}", f"--journal-dir={journal}"]
        return options + [f"--ledger-dir={ledger}" for ledger in ledgers]

    def dlog(self, *arguments: str, code: int = 0, stdin: str = "") -> Result:
        command = ["bookie", *arguments, *self.directories]
        result = CliRunner().invoke(app, command, prog_name="dlog", input=stdin)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    def json(self, *arguments: str, code: int = 0) -> list[Any]:
        output = self.dlog(*arguments, "--json", code=code).stdout
        return [json.loads(line) for line in output.splitlines()]

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.root.glob(pattern))

    def process(self, name: str = "b0") -> Any:
        return bookie(self.uri, self.root / "main", *self.directories[1:], f"--id={name}")


async def fill(uri: str) -> tuple[int, int]:
    client = await LedgerClient.connect(uri, PATIENT)
    try:
        await client.bookies.wait_for(1, PATIENCE_S)
        ledgers = []
        for _ in range(2):
            writer = await client.create(ONE)
            adds = [writer.add(b"payload %d" % number) for number in range(ENTRIES)]
            await asyncio.gather(*adds)
            ledgers.append(int(writer.ledger_id))
        await client.recover(LedgerId(ledgers[1]))
        return ledgers[0], ledgers[1]
    finally:
        await client.close()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Used:
    root = tmp_path_factory.mktemp("bookie")
    used = Used(root, 0, 0)
    with used.process() as process:
        process.ready()
        open_ledger, closed_ledger = asyncio.run(fill(used.uri))
        assert process.stop() == 0
    return Used(root, open_ledger, closed_ledger)


@pytest.fixture
def used(original: Used, tmp_path: Path) -> Used:
    shutil.copytree(original.root, tmp_path / "copy")
    return Used(tmp_path / "copy", original.open_ledger, original.closed_ledger)


COMMANDS = [
    ["check"],
    ["mark"],
    ["format"],
    ["accept-loss"],
    ["journal", "dump"],
    ["entrylog", "dump"],
    ["index", "dump"],
    ["index", "rebuild"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_of_each_offline_command_teaches(command: list[str]) -> None:
    result = CliRunner().invoke(app, ["bookie", *command, "--help"], prog_name="dlog")
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"dlog bookie {' '.join(command)} --dir" in result.output
    for option in ("--dir", "--journal-dir", "--ledger-dir", "--json"):
        assert option in result.output


def test_a_stopped_bookie_is_whole(used: Used) -> None:
    [found] = used.json("check")
    assert found["whole"]
    assert found["counts"]["ledgers"] == 2
    assert found["counts"]["index_entries"] == 2 * ENTRIES
    assert found["counts"]["fenced"] == 1
    assert found["damages"] == []
    assert "whole: nothing that was promised is missing" in used.dlog("check").stdout


def test_damage_is_shown_with_file_byte_and_advice_and_exits_with_1(used: Used) -> None:
    [log, *_] = used.files("ledgers-*/entrylog/*.log")
    data = bytearray(log.read_bytes())
    data[64 + 48] ^= 1
    log.write_bytes(data)
    [found] = used.json("check", code=1)
    assert not found["whole"]
    damage = found["damages"][0]
    assert (damage["path"], damage["offset"]) == (str(log), 64)
    output = used.dlog("check", code=1).stdout
    assert f"DAMAGED: {log} at byte 64: entry 0 of ledger" in output
    assert "what to do: keep the file" in output


def test_a_running_bookie_is_left_alone(used: Used) -> None:
    with used.process() as process:
        process.ready()
        for command in (["check"], ["mark"], ["journal", "dump"], ["index", "rebuild", "--yes"]):
            result = used.dlog(*command, code=1)
            assert f"process {process.popen.pid}" in result.stderr
            assert len(result.stderr.splitlines()) == 1
        assert process.stop() == 0


def test_a_killed_bookie_shows_what_will_be_replayed(used: Used) -> None:
    with used.process() as process:
        process.ready()
        ledger, _ = asyncio.run(fill(used.uri))
        process.kill()
    [mark] = used.json("mark")
    records = used.json("journal", "dump")
    ends = [line for line in records if "end" in line]
    records = [line for line in records if "end" not in line]
    assert mark["records"] == len(records)
    assert mark["replay_bytes"] == sum(record["bytes"] for record in records)
    assert [end["reason"] for end in ends] == ["nothing was written behind it"]
    entries = [
        entry
        for r in records
        if r["ledger"] == ledger and r["kind"] == "add"
        for entry in r["entries"]
    ]
    assert entries == list(range(ENTRIES))
    assert any(record["kind"] == "fence" for record in records)
    mine = used.json("journal", "dump", "--ledger", str(ledger))
    assert {line["ledger"] for line in mine if "end" not in line} == {ledger}
    name = used.files("journal/journal/*.journal")[-1].name.removesuffix(".journal")
    assert len(used.json("journal", "dump", "--file", name)) >= 1
    assert "synced to" in used.dlog("journal", "dump").stdout
    assert "to replay" in used.dlog("mark").stdout
    [found] = used.json("check")
    assert found["whole"]


def test_a_damaged_journal_shows_where_it_ends(used: Used) -> None:
    (used.root / "journal/journal/mark").write_bytes(b"nothing")
    lines = used.json("journal", "dump", code=1)
    [damage] = [line for line in lines if line.get("damaged")]
    assert damage["path"].endswith("journal/mark")
    assert "DAMAGED" in used.dlog("journal", "dump", code=1).stdout
    assert used.json("mark", code=1)[0]["damages"]


def test_entry_logs_are_shown_by_map_and_by_frame(used: Used) -> None:
    logs = used.json("entrylog", "dump")
    held = {ledger["ledger"]: ledger["entries"] for log in logs for ledger in log["ledgers"] or ()}
    assert held == {used.open_ledger: ENTRIES, used.closed_ledger: ENTRIES}
    lines = used.json("entrylog", "dump", "--frames", "--ledger", str(used.open_ledger))
    frames = [line for line in lines if "entry" in line]
    assert [frame["entry"] for frame in frames] == list(range(ENTRIES))
    assert {frame["ledger"] for frame in frames} == {used.open_ledger}
    [first] = {frame["log"] for frame in frames}
    assert len(used.json("entrylog", "dump", "--log", f"{first:x}")) >= 1
    assert "frames end at byte" in used.dlog("entrylog", "dump", "--frames").stdout


def test_a_log_without_a_map_says_so(used: Used) -> None:
    for log in used.files("ledgers-*/entrylog/*.log"):
        log.write_bytes(log.read_bytes()[:-10])
    assert all(log["ledgers"] is None for log in used.json("entrylog", "dump"))
    assert "as a crash leaves it" in used.dlog("entrylog", "dump").stdout


def test_the_index_is_shown_and_the_access_key_is_not(used: Used) -> None:
    found = {ledger["ledger"]: ledger for ledger in used.json("index", "dump")}
    assert found[used.open_ledger]["fenced"] is False
    assert found[used.closed_ledger]["fenced"] is True
    assert found[used.open_ledger]["last_entry"] == ENTRIES - 1
    assert len(found[used.open_ledger]["key_digest"]) == 8
    [one] = used.json("index", "dump", "--ledger", str(used.open_ledger), "--entries")
    assert [place["entry"] for place in one["places"]] == list(range(ENTRIES))
    output = used.dlog("index", "dump", "--entries").stdout
    assert "key digest" in output

    async def keys() -> list[bytes]:
        client = await LedgerClient.connect(used.uri, PATIENT)
        try:
            both = (used.open_ledger, used.closed_ledger)
            metadata = [await client.describe(LedgerId(ledger)) for ledger in both]
        finally:
            await client.close()
        return [key for each in metadata for key in (each.access_key, each.secret)]

    for key in asyncio.run(keys()):
        assert key
        assert key.hex() not in output


def test_a_damaged_index_is_shown_and_rebuilt_and_everything_is_there_and_fenced(
    used: Used,
) -> None:
    with used.process() as process:  # then no journal has the keys any more
        process.ready()
        assert process.stop() == 0
    for path in (*used.files("ledgers-*/index/*/*.index"), *used.files("ledgers-*/index/redo")):
        path.write_bytes(b"\0" * 4096)
    assert all(ledger["damages"] for ledger in used.json("index", "dump", code=1))
    [found] = used.json("check", code=1)
    assert "index rebuild" in found["damages"][0]["advice"]
    used.dlog("index", "rebuild", code=1, stdin="n\n")
    assert used.json("index", "dump", code=1)
    refused = used.dlog("index", "rebuild", "--yes", "--no-store", code=1)
    assert "nothing was changed" in refused.stderr
    [result] = used.json("index", "rebuild", "--yes", "--uri", used.uri)
    assert (result["ledgers"], result["entries"]) == (2, 2 * ENTRIES)
    assert used.json("check")[0]["whole"]
    with used.process() as process:
        process.ready()
        asyncio.run(everything_is_there(used))
        assert process.stop() == 0


async def everything_is_there(used: Used) -> None:
    client = await LedgerClient.connect(used.uri, PATIENT)
    try:
        await client.bookies.wait_for(1, PATIENCE_S)
        for ledger in (used.open_ledger, used.closed_ledger):
            reader = await client.open(LedgerId(ledger))
            found = await reader.read(0, ENTRIES - 1)
            assert [bytes(entry.payload) for entry in found] == [
                b"payload %d" % number for number in range(ENTRIES)
            ]
            await reader.close()
    finally:
        await client.close()


async def test_a_writer_from_before_a_rebuild_is_refused(used: Used) -> None:
    client = await LedgerClient.connect(used.uri, PATIENT)
    try:
        with used.process() as process:
            process.ready()
            await client.bookies.wait_for(1, PATIENCE_S)
            writer = await client.create(ONE)
            await writer.add(b"before")
            assert process.stop() == 0
        for index in used.files("ledgers-*/index"):
            shutil.rmtree(index)
            index.mkdir()
        arguments = ("index", "rebuild", "--yes", "--uri", used.uri)
        await asyncio.to_thread(used.dlog, *arguments)
        with used.process() as process:
            process.ready()
            with pytest.raises(LedgerFenced):
                await writer.add(b"after")
    finally:
        await client.close()


def test_another_cluster_is_refused(used: Used, tmp_path: Path) -> None:
    arguments = ("index", "rebuild", "--yes", "--uri", make(f"file://{tmp_path}/other"))
    assert "belongs to cluster" in used.dlog(*arguments, code=1).stderr


def test_directories_in_another_order_are_told(used: Used) -> None:
    first, second = used.root / "ledgers-0", used.root / "ledgers-1"
    first.rename(used.root / "aside")
    second.rename(first)
    (used.root / "aside").rename(second)
    reasons = [damage["reason"] for damage in used.json("check", code=1)[0]["damages"]]
    assert any("[ledger 1 of 2]" in reason for reason in reasons)


def test_format_refuses_data_until_told_to_wipe_and_the_name_never_comes_back(used: Used) -> None:
    assert "holds data of a bookie" in used.dlog("format", "--yes", code=1).stderr
    assert used.json("check")[0]["whole"]
    used.dlog("format", "--wipe", code=1, stdin="n\n")
    assert used.json("check")[0]["whole"]
    result = used.dlog("format", "--wipe", "--yes")
    assert "the cluster still knows bookie b0" in result.stderr
    assert not used.files("*/cookie")
    with used.process() as process:
        assert "does not hold its data" in process.refused()
    arguments = ("format", "--wipe", "--yes", "--forget", "--uri", used.uri)
    assert "give its --id" in used.dlog(*arguments, code=1).stderr
    for _ in range(2):
        [found] = used.json(*arguments, "--id=b0")
        assert (found["bookie"], found["forgotten"]) == ("b0", True)
        with used.process() as process:
            assert "the name b0 is retired" in process.refused()
    with used.process("b1") as process:
        process.ready()
        assert process.stop() == 0
    assert used.json("check")[0]["counts"]["ledgers"] == 0


def test_a_loss_is_accepted_by_an_operator_only(used: Used) -> None:
    def doubts() -> list[str]:
        cookies = [read_cookie(RealDisk(path.parent)) for path in used.files("*/cookie")]
        return [cookie.doubt for cookie in cookies if cookie is not None]

    used.dlog("accept-loss", code=1, stdin="n\n")
    assert doubts() == [""] * 4
    assert "in limbo" in used.dlog("accept-loss", "--yes", "--reason", "it burned").stderr
    assert doubts() == ["it burned"] * 4
    for cookie in used.files("*/cookie"):
        cookie.unlink()
    assert "is not a bookie directory" in used.dlog("accept-loss", "--yes", code=1).stderr


def test_format_makes_directories_ready(tmp_path: Path) -> None:
    used = Used(tmp_path / "new", 0, 0)
    assert "is ready for a new bookie" in used.dlog("format").stderr
    assert used.json("check")[0]["whole"]
    with used.process() as process:
        process.ready()
        assert process.stop() == 0


@pytest.mark.parametrize(
    "command", [["check"], ["mark"], ["journal", "dump"], ["entrylog", "dump"], ["index", "dump"]]
)
def test_a_directory_that_is_none_is_one_sentence(command: list[str], tmp_path: Path) -> None:
    used = Used(tmp_path / "nothing", 0, 0)
    assert "is not a bookie directory: it is not there" in used.dlog(*command, code=1).stderr
    for name in ("main", "journal", "ledgers-0", "ledgers-1"):
        (tmp_path / "nothing" / name).mkdir(parents=True)
    assert "no data of a bookie" in used.dlog(*command, code=1).stderr
    assert used.files("*/*") == sorted((tmp_path / "nothing").glob("*/LOCK"))
