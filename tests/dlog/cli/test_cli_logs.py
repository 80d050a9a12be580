"""``dlog log`` from creation to end: settings, names, sealing, watching."""

from collections.abc import Iterator

import pytest

import dlog
from dlog.cli.completion import complete_codec
from dlog.recordbatch import Codec
from tests.dlog.cli.cli_shell import CliShell, cli_shell


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


def test_a_log_is_created_with_any_setting_by_its_name(shell: CliShell) -> None:
    shell.run("log", "create", "set", "--set", "roll_records=7", "--set", "retention_age_s=7d")
    found = shell.json("log", "settings", "get", "set")
    assert (found["roll_records"], found["retention_age_s"]) == (7, 604800.0)
    assert "there is no such setting" in shell.refused("log", "create", "x", "--set", "color=1")
    assert "NAME=VALUE" in shell.refused("log", "create", "x", "--set", "color", code=2)
    refused = shell.refused("log", "create", "x", "--set", "roll_record=1")
    assert "no such setting; did you mean roll_records? There are ensemble," in refused


def test_settings_are_changed_and_shown(shell: CliShell) -> None:
    shell.run("log", "create", "changed")
    pairs = ["roll_bytes=10M", "codec=zstd", "ack_quorum=3", "retention_waits_for_consumers=true"]
    found = shell.json("log", "settings", "set", "changed", *pairs)
    assert (found["roll_bytes"], found["codec"], found["ack_quorum"]) == (10 << 20, "zstd", 3)
    assert found["retention_waits_for_consumers"] is True
    assert shell.json("log", "settings", "get", "changed") == found
    assert shell.run("log", "settings", "get", "changed", "codec") == "zstd\n"
    assert shell.json("log", "settings", "get", "changed", "codec") == {"codec": "zstd"}
    assert "roll_bytes" in shell.run("log", "settings", "get", "changed")
    assert shell.json("log", "settings", "get", "changed", "degraded_writes")["degraded_writes"]
    shell.run("log", "create", "strict", "--set", "degraded_writes=false")
    assert shell.run("log", "settings", "get", "strict", "degraded_writes") == "false\n"
    waits = "retention_waits_for_consumers"
    assert shell.run("log", "settings", "get", "changed", waits) == "true\n", "as 'set' takes it"
    assert shell.json("log", "show", "changed")["settings"] == found


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("color=red", "there is no such setting"),
        ("codec=gzip", "use none, zstd, zstd:1 to zstd:19"),
        ("record_bytes_max=1T", "use 1 to"),
        ("ack_quorum=9", "quorum"),
        ("ensemble=many", "use a whole number"),
        ("roll_bytes=true", "use bytes, or 512K"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(shell: CliShell, pair: str, reason: str) -> None:
    log = f"senseless/{pair}"
    shell.run("log", "create", log)
    before = shell.json("log", "settings", "get", log)
    assert reason in shell.refused("log", "settings", "set", log, pair)
    assert shell.json("log", "settings", "get", log) == before


def test_a_setting_that_does_not_exist_is_not_shown(shell: CliShell) -> None:
    shell.run("log", "create", "few")
    assert "there is no setting 'color'" in shell.refused("log", "settings", "get", "few", "color")
    assert "; did you mean 'codec'?" in shell.refused("log", "settings", "get", "few", "codek")
    assert "there is no log" in shell.refused("log", "settings", "get", "absent")
    assert "there is no log" in shell.refused("log", "settings", "set", "absent", "codec=zstd")
    shell.refused("log", "settings", "set", "few", code=2)


def test_the_nearest_log_is_named_where_one_does_not_exist(shell: CliShell) -> None:
    shell.run("log", "create", "departures")
    for command in ("tail", "show", "count", "seal --yes"):
        sentence = shell.refused("log", *command.split(), "departurs")
        assert "there is no log 'departurs'" in sentence
        assert sentence.endswith("; did you mean 'departures'?")
    assert "did you mean" not in shell.refused("log", "show", "nothing like it")


def test_whether_a_log_exists_is_the_exit_code(shell: CliShell) -> None:
    shell.run("log", "create", "there")
    assert shell.run("log", "exists", "there") == ""
    assert shell.run("log", "exists", "not-there", code=1) == ""
    assert shell.json("log", "exists", "there") == {"log": "there", "exists": True}
    assert shell.json("log", "exists", "not-there", code=1)["exists"] is False
    assert "control characters" in shell.refused("log", "exists", "a\nb")


def test_logs_are_listed_level_by_level(shell: CliShell) -> None:
    for name in ("tree/a", "tree/west/b", "tree/west/c"):
        shell.run("log", "create", name)
    assert shell.json("log", "list", "--prefix", "tree/") == [
        "tree/a",
        "tree/west/b",
        "tree/west/c",
    ]
    level = shell.run("log", "list", "--prefix", "tree/", "--no-recursive")
    assert level.splitlines() == ["tree/a", "tree/west/"]


def test_a_renamed_log_keeps_what_it_has(shell: CliShell) -> None:
    shell.write("old", end=5)
    assert shell.json("log", "rename", "old", "new/name") == {
        "log": "new/name",
        "renamed_from": "old",
    }
    assert shell.run("log", "tail", "new/name").split() == ["0", "1", "2", "3", "4"]
    assert "there is no log 'old'" in shell.refused("log", "rename", "old", "other")
    shell.run("log", "create", "taken")
    assert "already" in shell.refused("log", "rename", "taken", "new/name")
    assert "begins with a dot" in shell.refused("log", "rename", "taken", ".hidden")
    shell.run("log", "rename", "taken", "taken2")


def test_a_sealed_log_takes_no_more(shell: CliShell) -> None:
    shell.write("ended", end=4)
    result = shell.invoke("log", "seal", "ended", stdin="n\n")
    assert result.exit_code == 1
    assert shell.json("log", "show", "ended")["sealed"] is False
    assert shell.run("log", "seal", "ended", stdin="y\n").endswith("4\n")
    assert shell.json("log", "seal", "ended", "--yes")["next_offset"] == 4, "again changes nothing"
    assert shell.json("log", "show", "ended")["sealed"] is True
    assert "sealed" in shell.run("log", "show", "ended")
    with pytest.raises(dlog.LogSealed):
        dlog.Log.open("ended", uri=shell.uri)
    assert shell.run("log", "tail", "ended", "-f").split() == ["0", "1", "2", "3"], "it ends"
    assert "there is no log" in shell.refused("log", "seal", "absent", "--yes")


def test_watching_tells_what_is_there_and_what_is_added(shell: CliShell) -> None:
    for name in ("seen/1", "seen/2"):
        shell.run("log", "create", name)
    shown = shell.run("log", "watch", "--prefix", "seen/", "--limit", "2")
    assert shown == "added\tseen/1\nadded\tseen/2\n"
    assert shell.json_lines("log", "watch", "--prefix", "seen/", "-n", "1") == [
        {"kind": "added", "log": "seen/1"}
    ]
    assert shell.run("log", "watch", "--limit", "0") == ""
    shell.refused("log", "watch", "--limit", "-1", code=2)


def test_names_of_logs_are_completed(shell: CliShell) -> None:
    shell.write("complete/me", end=1)
    shell.write("complete/me-too", end=1)
    words = {"COMP_WORDS": "dlog log show complete/", "COMP_CWORD": "3"}
    result = shell.invoke(_DLOG_COMPLETE="complete_bash", **words)
    assert result.output.split() == ["complete/me", "complete/me-too"]
    nowhere = shell.invoke(
        _DLOG_COMPLETE="complete_bash", **{**words, "DLOG_URI": "http://example.org"}
    )
    assert nowhere.output.split() == [], "no name is better than an error in the middle of a line"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bookie status bookie-", "bookie-0 bookie-1 bookie-2"),
        ("bookie decommission bookie-1", "bookie-1"),
        ("bookie recover --into b", "bookie-0 bookie-1 bookie-2"),
        ("bookie replace bookie-0 bookie-2", "bookie-2"),
        ("bookie ready x", ""),
        ("log create x --set roll_r", "roll_records="),
        ("log settings get x roll_r", "roll_records"),
        ("log settings set x roll_r", "roll_records="),
        ("log tail x --start s", "start"),
        ("log tail x --stop e", "end"),
        ("log seek x e", "end"),
        ("log count x --start e", "end"),
        ("consumer reset x y --to s", "start"),
    ],
)
def test_names_of_bookies_and_settings_and_positions_are_completed(
    shell: CliShell, line: str, offered: str
) -> None:
    words = {"COMP_WORDS": f"dlog {line}", "COMP_CWORD": str(len(line.split()))}
    result = shell.invoke(_DLOG_COMPLETE="complete_bash", **words)
    assert result.output.split() == offered.split()


@pytest.mark.parametrize("codec", [*(each.name.lower() for each in Codec), "zstd:1", "zstd:19"])
def test_every_codec_can_be_asked_for_by_its_name(shell: CliShell, codec: str) -> None:
    log = f"by/{codec.replace(':', '-')}"
    shell.run("log", "create", log, "--codec", codec)
    assert shell.json("log", "show", log)["settings"]["codec"] == codec
    assert shell.run("log", "settings", "get", log, "codec") == f"{codec}\n"
    assert f"  {codec}\n" in shell.run("log", "show", log)


@pytest.mark.parametrize("wrong", ["gzip", "zstd:20", "zstd:", "lz4:3"])
def test_a_codec_that_does_not_exist_is_refused_with_those_that_do(
    shell: CliShell, wrong: str
) -> None:
    shell.run("log", "create", f"of/{wrong.replace(':', '-')}")
    allowed = "use none, zstd, zstd:1 to zstd:19 (its level), or lz4"
    said = shell.refused("log", "create", "new", "--codec", wrong, code=2)
    assert allowed in said
    log = f"of/{wrong.replace(':', '-')}"
    assert allowed in shell.refused("log", "settings", "set", log, f"codec={wrong}")
    assert shell.run("log", "settings", "get", log, "codec") == "none\n"
    shell.run("log", "exists", "new", code=1)


def test_names_of_codecs_are_completed() -> None:
    assert complete_codec("") == [each.name.lower() for each in Codec]
    assert complete_codec("z") == ["zstd"]


def test_the_ratio_is_shown_of_what_is_stored(shell: CliShell) -> None:
    shell.run("log", "create", "packed", "--codec", "zstd:3")
    assert shell.json("log", "show", "packed")["compression"] is None
    with dlog.Log.open("packed", uri=shell.uri) as log:
        log.append_many([b"the same line of text again"] * 1000)
    found = shell.json("log", "show", "packed")["compression"]
    [entry] = shell.json_lines("log", "dump", "packed")
    assert found["stored_bytes"] == entry["stored_bytes"]
    assert found["uncompressed_bytes"] == 4 * 1001 + 4 + 27 * 1000
    assert found["ratio"] == round(found["stored_bytes"] / found["uncompressed_bytes"], 4) < 0.2
    assert (found["codecs"], found["sample_entries"], found["sample_records"]) == (
        ["zstd"],
        1,
        1000,
    )
    shown = shell.run("log", "show", "packed")
    assert "0.0" in shown
    assert f"(zstd: {found['stored_bytes']:,} bytes stored of 31,008; sample: newest" in shown
    assert "1,000 records, entries: 1)" in shown


def test_a_codec_that_is_set_beside_a_writer_counts_from_its_next_segment(shell: CliShell) -> None:
    line = b"the same line of text again" * 50
    with dlog.Log.open("beside", uri=shell.uri) as log:
        log.append(line)
        shell.run("log", "settings", "set", "beside", "codec=zstd:19")
        log.append(line)
        log.roll()
        log.append(line)
        shell.run("log", "settings", "set", "beside", "codec=none")
    codecs = [entry["codec"] for entry in shell.json_lines("log", "dump", "beside")]
    assert codecs == ["none", "none", "zstd"]
    found = shell.json("log", "show", "beside")["compression"]
    assert (found["codecs"], found["sample_entries"]) == (["none", "zstd"], 3)


def test_what_is_known_without_bookies_is_shown_without_a_ratio(
    shell: CliShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.write("quiet", end=5)
    shell.run("log", "seal", "quiet", "--yes")
    monkeypatch.setattr("dlog.aio.read.segments.SAMPLE_S", 0.0)
    result = shell.invoke("log", "show", "quiet")
    assert (result.exit_code, "ratio unknown" in result.stderr) == (0, True)
    assert "0 to 4" in result.stdout
    assert shell.json("log", "show", "quiet")["compression"] is None
