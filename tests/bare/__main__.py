"""Installs the wheel alone into a bare environment, and does with it what the README says.

Call: python -m tests.bare WHEEL [--no-demo]. Ends with 1 at the first thing that does not work.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.pins import FILES, pins_of

ROOT: Final = Path(__file__).parents[2]
INSTALL_S: Final = 900.0
STEP_S: Final = 120.0
DEMO_S: Final = 600.0
USERS_PROGRAM: Final = """\
from dlog import DLSN, Log, LogSettings, NoSuchLog, Record, RecordId, Standby
from dlog.testing import cluster


def write(uri: str) -> RecordId:
    settings = LogSettings(roll_bytes=1 << 20)
    with Log.open("typed", uri=uri, reopen_timeout_s="30s", settings=settings) as log:
        return log.append(b"x", key=b"k", headers={"a": b"b"})


def values(uri: str) -> list[bytes]:
    with Log.tail("typed", uri=uri, start="earliest", follow=False) as reader:
        return [record.value for record in reader]


def place(record: Record) -> DLSN:
    return record.dlsn


with cluster() as made:
    assert write(made.uri).offset == 0
    assert values(made.uri) == [b"x"]
    reveal_type(Log.last("typed", uri=made.uri))
    reveal_type(Standby.open)
"""


class Environment:
    """A bare environment, and a directory that is not the clone's to work in."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.home.mkdir()
        self._bin = directory / "environment" / "bin"
        # Without their hashes: pip would want one of the wheel, too.
        self._constraints = directory / "constraints.txt"
        self._constraints.write_text("".join(f"{pin}\n" for file in FILES for pin in pins_of(file)))
        venv.create(directory / "environment", with_pip=True)
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self._variables = {**kept, "HOME": str(self.home), "PATH": f"{self._bin}:{os.defpath}"}

    def run(self, *command: str, timeout_s: float = STEP_S, **more: str) -> str:
        """Return what *command* printed; fail unless it ends with 0."""
        began = time.monotonic()
        done = subprocess.run(
            [shutil.which(command[0], path=self._variables["PATH"]) or command[0], *command[1:]],
            cwd=self.home,
            env=self._variables | more,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        took = time.monotonic() - began
        print(f"{'ok' if done.returncode == 0 else 'FAILED'} {took:6.1f} s  {shown(command)}")
        if done.returncode:
            sys.exit(f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    def pip(self, *arguments: str) -> None:
        command = ("pip", "install", "--quiet", "--disable-pip-version-check")
        self.run(*command, "--constraint", str(self._constraints), *arguments, timeout_s=INSTALL_S)

    @contextmanager
    def up(self) -> Iterator[str]:
        """Run ``dlog up``; yield its namespace."""
        process = subprocess.Popen(
            [str(self._bin / "dlog"), "up", "--json"],
            cwd=self.home,
            env=self._variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            uri = json.loads(process.stdout.readline())["uri"]
            print("ok           dlog up")
            yield uri
        finally:
            process.terminate()
            code = process.wait(STEP_S)
        if code:
            sys.exit(f"dlog up ended with {code}")


def shown(command: tuple[str, ...]) -> str:
    return " ".join(command).split("\n")[0][:100]


def ten_lines() -> str:
    """Return the first program of the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None, "the README has no program"
    return found[1]


def try_out(wheel: Path, directory: Path, *, demo: bool) -> None:
    there = Environment(directory)
    there.pip(str(wheel))
    there.run("python", "-c", "from dlog import Log; print(Log)")
    print(there.run("dlog", "--version").rstrip())
    with there.up():
        program = there.home / "ten_lines.py"
        program.write_text(ten_lines())
        assert there.run("python", str(program)).split()[-1] == "b'world'"
        assert there.run("dlog", "log", "tail", "greetings").split()[-1] == "world"
    there.pip("mypy", "pytest", "pytest-timeout")
    user = there.home / "users_program.py"
    user.write_text(USERS_PROGRAM)
    said = there.run("mypy", "--strict", str(user))
    assert "Any" not in said, f"a public signature has Any in it: {said}"
    user.write_text("\n".join(line for line in USERS_PROGRAM.splitlines() if "reveal" not in line))
    there.run("python", str(user))
    refuse_the_other(there)
    if demo:
        there.pip(f"{wheel}[spark,demo]")
        print(there.run("dlog", "demo", timeout_s=DEMO_S).splitlines()[-1])


def refuse_the_other(there: Environment) -> None:
    """The other project's package named dlog is told of, whichever came last."""
    site = there.run("python", "-c", "import dlog; print(dlog.__path__[0])").strip()
    metadata = Path(site).parent / "dlog-1.0.5.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: dlog\nVersion: 1.0.5\nSummary: Easy log\n")
    said = there.run("sh", "-c", "dlog log list 2>&1; test $? = 1")
    assert "another project's package 'dlog' (dlog 1.0.5) is installed here" in said, said
    metadata.unlink()
    metadata.parent.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--no-demo", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlog-dist-") as directory:
        try_out(arguments.wheel.resolve(), Path(directory), demo=not arguments.no_demo)
    print("the wheel alone does what the README says")


if __name__ == "__main__":
    main()
