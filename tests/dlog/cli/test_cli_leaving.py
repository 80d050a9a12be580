"""``dlog bookie decommission``: what is shown while a bookie is emptied."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from bookie.autorecovery.protocol.move_job import Report
from dlog.cli.app import app
from dlog.cli.bookie.departure import shown_reports
from ledger.ids import LedgerId


class Bar:
    def __init__(self) -> None:
        self.drawn: list[tuple[int, int | None, str]] = []

    def __call__(self, done: int, total: int | None, words: str) -> None:
        self.drawn.append((done, total, words))


def report(
    ledgers: int, size_bytes: int, hopeless: Sequence[int] = (), trouble: str = ""
) -> Report:
    return Report(
        ledgers_left=ledgers,
        bytes_left=size_bytes,
        unreadable=0,
        marked=ledgers,
        hopeless=tuple(map(LedgerId, hopeless)),
        trouble=trouble,
    )


def shown(
    capsys: pytest.CaptureFixture[str], reports: Sequence[Report], *, as_json: bool = False
) -> tuple[str, Bar]:
    """Show *reports*, one each ten seconds."""
    bar = Bar()

    class Clock(asyncio.SelectorEventLoop):
        now_s = 0.0

        def time(self) -> float:
            return self.now_s

    async def show(loop: Clock) -> None:
        each = shown_reports(bar, as_json=as_json)
        for found in reports:
            each(found)
            loop.now_s += 10.0

    loop = Clock()
    loop.run_until_complete(show(loop))
    loop.close()
    return capsys.readouterr().out, bar


def test_what_is_left_is_printed_with_the_rate_and_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, bar = shown(capsys, [report(8, 8 << 20), report(6, 6 << 20), report(0, 0)])
    assert out.splitlines() == [
        "8 ledgers left, 8.0 MiB",
        "6 ledgers left, 6.0 MiB, 204.8 KiB/s, 30.0 s left",
        "0 ledgers left, 0 B",
    ]
    assert [(done, total) for done, total, _ in bar.drawn] == [
        (0, 8 << 20),
        (2 << 20, 8 << 20),
        (8 << 20, 8 << 20),
    ]


def test_what_has_not_changed_is_not_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    out, bar = shown(capsys, [report(8, 800)] * 5 + [report(8, 800, trouble="no answer")])
    assert out.splitlines() == ["8 ledgers left, 800 B", "8 ledgers left, 800 B; no answer"]
    assert len(bar.drawn) == 6


def test_marks_that_keep_it_waiting_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    left = Report(
        ledgers_left=0, bytes_left=0, unreadable=0, marked=3, hopeless=(), trouble="nobody works"
    )
    out, _ = shown(capsys, [left])
    assert out == "0 ledgers left, 0 B; 3 ledgers marked for it still; nobody works\n"


def test_hopeless_ledgers_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(capsys, [report(2, 200, hopeless=(7, 12))])
    assert "no bookie has some entries of ledgers 7, 12" in out
    out, _ = shown(capsys, [report(2, 200, hopeless=(7, 12))] * 2, as_json=True)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["with_lost_entries"] for line in lines] == [[7, 12]] * 2
    assert [line["left_s"] for line in lines] == [None, None]


@pytest.mark.parametrize(
    "command",
    [
        ["bookie", "decommission"],
        ["bookie", "recover"],
        ["bookie", "replace"],
        ["bookie", "rebalance"],
        ["bookie", "where"],
        ["autorecovery", "throttle"],
    ],
    ids=" ".join,
)
def test_the_help_of_each_command_teaches(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"], prog_name="dlog")
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"dlog {' '.join(command)}" in result.output
    assert "--json" in result.output
