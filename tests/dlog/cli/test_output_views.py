"""One description of a result: JSON for programs, lines and tables for people."""

import json
from typing import Final, NamedTuple

import pytest

from dlog.cli.output import Column, View, format_size, json_column, text_column


class Disk(NamedTuple):
    name: str
    used: int
    rack: str = ""
    failure: str | None = None


VIEW: Final = View[Disk](
    Column("disk", lambda disk: disk.name),
    Column("used_bytes", lambda disk: disk.used, "used", format_size),
    Column("rack", lambda disk: disk.rack),
    json_column("failed", lambda disk: disk.failure is not None),
    text_column("failure", lambda disk: disk.failure, is_optional=True),
)
WHOLE: Final = Disk("a", 2048, "r1")
FAILED: Final = Disk("b", 0, failure="gone")


def test_json_has_names_and_values_as_they_are() -> None:
    assert VIEW.json(WHOLE) == {"disk": "a", "used_bytes": 2048, "rack": "r1", "failed": False}


def test_people_see_titles_and_a_hyphen_for_what_is_missing() -> None:
    assert VIEW.lines(WHOLE) == {"disk": "a", "used": "2.0 KiB", "rack": "r1"}
    assert VIEW.lines(FAILED) == {"disk": "b", "used": "0 B", "rack": "-", "failure": "gone"}


def test_one_result_is_a_line_of_json_or_a_line_for_each_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    VIEW.print(WHOLE, as_json=True)
    assert json.loads(capsys.readouterr().out) == VIEW.json(WHOLE)
    VIEW.print(WHOLE, as_json=False)
    assert capsys.readouterr().out == "disk  a\nused  2.0 KiB\nrack  r1\n"


def test_many_results_are_a_list_or_a_table_and_none_is_said_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    VIEW.print_all([WHOLE, FAILED], "no disks", as_json=True)
    assert json.loads(capsys.readouterr().out) == VIEW.rows([WHOLE, FAILED])
    VIEW.only("used", "disk").print_all([WHOLE, FAILED], "no disks", as_json=False)
    table = capsys.readouterr().out.splitlines()
    assert [line.split() for line in table] == [
        ["used", "disk"],
        ["2.0", "KiB", "a"],
        ["0", "B", "b"],
    ]
    VIEW.print_all([], "no disks", as_json=False)
    assert capsys.readouterr() == ("", "no disks\n")
