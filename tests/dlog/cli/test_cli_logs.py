"""``dlog log`` from creation to end: settings, names, sealing, watching."""

from collections.abc import Iterator

import pytest

import dlog
from dlog.cli.log.app import CodecName
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
    waits = "retention_waits_for_consumers"
    assert shell.run("log", "settings", "get", "changed", waits) == "true\n", "as 'set' takes it"
    assert shell.json("log", "show", "changed")["settings"] == found


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("color=red", "there is no such setting"),
        ("codec=gzip", "use none, zstd, lz4"),
        ("record_bytes_max=1T", "use 1 to"),
        ("ack_quorum=9", "quorum"),
        ("ensemble=many", "use a whole number"),
        ("roll_bytes=true", "use a number"),
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
    assert "there is no log" in shell.refused("log", "settings", "get", "absent")
    assert "there is no log" in shell.refused("log", "settings", "set", "absent", "codec=zstd")
    shell.refused("log", "settings", "set", "few", code=2)


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


def test_every_codec_can_be_asked_for_by_its_name() -> None:
    assert [each.name for each in CodecName] == [each.name for each in Codec]
    assert [each.value for each in CodecName] == [each.name.lower() for each in Codec]
