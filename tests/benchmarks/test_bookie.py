"""The benchmark of a bookie runs from end to end; what it measures is not judged here."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from benchmarks.bookie.load import AddFailed, add_times
from benchmarks.figures import Figure
from benchmarks.plot import svg
from ledger.requests import AddRun, Status
from ledger.transport.sockets import SocketTransport

PROMISED = (
    "R: sequential durable writes",
    "F: fdatasync of 4 KiB",
    *(f"adds of {size}" for size in ("100 B", "1 KB", "64 KB")),
    *(
        f"add of {size}, {in_flight} in flight {percent}"
        for size in ("100 B", "1 KB", "64 KB")
        for in_flight in (1, 16, 256)
        for percent in ("p50", "p99")
    ),
    "catch-up at 64 KB",
    "add of 1 KB, 16 in flight, beside catch-up p99",
    "add of 1 KB, 16 in flight, beside compaction p99",
    "restart after kill",
    "200 ledgers of 10 entries: memory growth",
    "200 ledgers of 10 entries: open files",
    "200 ledgers of 10 entries: disk",
)


class _Bookie:
    """Answers with *answers*, one after the other, and with OK from then on."""

    def __init__(self, *answers: Status) -> None:
        self._answers = list(answers)
        self.asked = 0

    def add(self, _: str, __: AddRun, done: Callable[[Status], None]) -> None:
        self.asked += 1
        status = self._answers.pop(0) if self._answers else Status.OK
        asyncio.get_running_loop().call_soon(done, status)


async def _times(bookie: _Bookie) -> list[float]:
    return await add_times(cast(SocketTransport, bookie), 1, 100, in_flight=1, seconds=0)


async def test_an_add_that_finds_no_room_is_sent_again_and_another_error_ends_the_measurement() -> (
    None
):
    bookie = _Bookie(Status.TOO_MANY_REQUESTS, Status.TOO_MANY_REQUESTS)
    [time_s] = await _times(bookie)
    assert bookie.asked == 3
    assert time_s > 0.009, "the time that it waited counts"
    with pytest.raises(AddFailed, match="IO_ERROR"):
        await _times(_Bookie(Status.IO_ERROR))


@pytest.mark.long("bench-bookie")
@pytest.mark.integration
def test_a_quick_run_tells_every_figure_and_leaves_nothing_but_them(tmp_path: Path) -> None:
    kept, data = tmp_path / "kept" / "figures.json", tmp_path / "data"
    command = [sys.executable, "-m", "benchmarks.bookie", "--quick"]
    run = subprocess.run(
        [*command, "--dir", str(data), "--json", str(kept)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(kept.read_text())["figures"]
    names = [figure["name"] for figure in told]
    for wanted in PROMISED:
        assert any(name.startswith(wanted) for name in names), wanted
    assert len(set(names)) == len(names)
    assert all(figure["value"] >= 0 for figure in told)
    assert all(name in run.stdout for name in names)
    assert kept.with_suffix(".svg").read_text().startswith("<svg")
    assert not list(data.iterdir())


def test_the_drawing_has_a_bar_for_each_aim_and_each_latency() -> None:
    figures = [
        Figure("rate", 100.0, "/s", 0.5, "aims", ">= 200", False),
        Figure("share", 300.0, "MB/s", 0.9, "R/2", ">= 0.7 R/2", True),
        Figure("waits <long> p50", 0.2, "ms", 2.0, "F", "<= 3 F", True),
        Figure("only told", 7.0, ""),
    ]
    drawing = svg(figures)
    assert drawing.count(">rate</text>") == 1
    assert drawing.count(">share</text>") == 1
    assert drawing.count(">waits &lt;long&gt; p50</text>") == 2
    assert "only told" not in drawing
    assert ">0.5</text>" in drawing  # half of the rate that was asked for
    assert ">1.29</text>" in drawing  # 0.9 where 0.7 was asked for
    assert ">1.5</text>" in drawing  # 2 F where 3 F was allowed
