"""The checker in `checker/`, a program in Go on Porcupine: built once, then fed with histories.

Go fetches Porcupine the first time, at the version and with the checksum of `go.mod` and `go.sum`.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = Path(__file__).parent / "checker"
BUILT: Final = ROOT / "build" / "linearizable"
"""Where the program goes, and what is wrong: histories and drawings."""
PROGRAM: Final = BUILT / "checker"
JUDGING_S: Final = 120.0
"""For each history; one that is not decided by then counts as wrong."""
_FETCHING_S: Final = 300.0


class CheckerMissing(Exception):
    """There is no Go, or it cannot build the checker here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Porcupine found about one history."""

    history: str
    operations: int
    unknown: int
    """Appends without an outcome."""
    result: str
    seconds: float
    drawing: str
    """The page with Porcupine's picture of a history that is not linearizable."""
    story: list[str]
    """The end of the longest order that is possible, and the operations without a place in it."""

    @property
    def linearizable(self) -> bool:
        return self.result == "Ok"


def build() -> None:
    """Build the checker. Raises `CheckerMissing`."""
    if shutil.which("go") is None:
        raise CheckerMissing(
            "Go is not installed: apt install golang-go, or https://go.dev/dl; 1.22 or newer"
        )
    BUILT.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["go", "build", "-mod=readonly", "-o", str(PROGRAM), "."],
        cwd=SOURCE,
        env={**os.environ, "GOWORK": "off"},
        capture_output=True,
        text=True,
        timeout=_FETCHING_S,
        check=False,
    )
    if done.returncode:
        raise CheckerMissing(f"Go cannot build {SOURCE}: {done.stderr.strip()}")


def judge(lines: Iterable[str], *, seconds: float = JUDGING_S) -> list[Verdict]:
    """Judge histories, given as lines of operations. Requires `build`."""
    fed = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(
        [str(PROGRAM), str(BUILT), str(seconds)],
        input=fed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Verdict(**json.loads(line)) for line in done.stdout.splitlines()]
