"""The tutorial, on real processes: its program runs twice, and the one that leads is killed."""

import asyncio
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dlog.cli.app import app
from dlog.local.cluster import LocalCluster
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration]

TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
PROGRAM = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
LINES = [
    line
    for block in re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL)
    for line in block.splitlines()
]


class Program:
    """One run of the tutorial's program, and what it printed so far."""

    def __init__(self, path: Path, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(path), name], stdout=subprocess.PIPE, text=True
        )
        self.printed: list[str] = []
        self._news = threading.Condition()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def wait_for(self, pattern: str) -> str:
        """Return the first line in which *pattern* is."""

        def found() -> str | None:
            return next((line for line in self.printed if re.search(pattern, line)), None)

        with self._news:
            assert self._news.wait_for(found, PATIENCE_S), (pattern, self.printed)
        return found() or ""

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reading.join(PATIENCE_S)

    def kill(self) -> int:
        """Kill it; return how many apples it had."""
        self.end()
        return int(re.findall(r"has (\d+) apples", "".join(self.printed))[-1])

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._news:
                    self.printed.append(line)
                    self._news.notify_all()


def test_what_the_tutorial_says_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with LocalCluster(tmp_path / "cluster") as cluster:
            monkeypatch.setenv("DLOG_URI", cluster.uri)
            await asyncio.to_thread(follow, tmp_path / "apples.py")

    assert LINES[0] == "dlog up", "what the cluster is instead of"
    asyncio.run(scenario())


def follow(path: Path) -> None:
    """Do what the tutorial says, line by line."""
    path.write_text("\n".join(PROGRAM))
    programs: dict[str, Program] = {}
    shown = ""
    try:
        for line in LINES[1:]:
            words = shlex.split(line)
            if words[0] == "python":
                is_first = not programs
                programs[words[2]] = Program(path, words[2])
                programs[words[2]].wait_for("has 3 apples" if is_first else "stands by")
            elif words[0] == "pkill":
                had = programs["anna"].kill()
                led = int(programs["bert"].wait_for("leads, with").split()[3])
                assert led in (had, had + 1)
                programs["bert"].wait_for(f"has {led + 3} apples")
            else:
                shown = dlog(words[1:])
    finally:
        for each in programs.values():
            each.end()
    assert programs.keys() == {"anna", "bert"}
    assert len(shown.splitlines()) >= 3, shown


def dlog(words: list[str]) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (words, result.output)
    return result.output
