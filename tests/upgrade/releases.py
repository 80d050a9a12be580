"""The releases that an upgrade is between: each one's wheel in an environment of its own.

The previous one is built from a commit, or is the wheel that DLOG_TEST_PREVIOUS_WHEEL names. They
stand below `build/upgrade`; what was built of a commit stays there.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BUILT: Final = ROOT / "build" / "upgrade"
STAND_IN: Final = "6dd92399a6740ecf5f5e6084b7f955a212e2f198"
"""Stands in for the previous release, as long as none was made: it was ready to be one."""
WHEEL_VARIABLE: Final = "DLOG_TEST_PREVIOUS_WHEEL"
STEP_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Release:
    name: str
    programs: Path
    """The directory of its commands."""

    def command(self, *words: str) -> list[str]:
        return [str(self.programs / words[0]), *words[1:]]

    def environment(self, uri: str) -> dict[str, str]:
        """Return what its processes have: nothing of the clone is found by them."""
        # Nor a setting that only one of them knows: what is unknown is refused.
        kept = {
            name: value
            for name, value in os.environ.items()
            if name != "PYTHONPATH" and not name.startswith("DLOG_")
        }
        return kept | {"DLOG_URI": uri}


def previous() -> Release:
    given = os.environ.get(WHEEL_VARIABLE)
    if given is not None:
        return _installed("previous", Path(given))
    directory = BUILT / STAND_IN[:12]
    if not list((directory / "dist").glob("*.whl")):
        shutil.rmtree(directory, ignore_errors=True)
        source = directory / "source"
        source.mkdir(parents=True)
        archive = _run("git", "archive", "--format=tar", STAND_IN, cwd=ROOT)
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            tar.extractall(source, filter="data")
        _build(source, directory / "dist")
    (wheel,) = (directory / "dist").glob("*.whl")
    return _installed("previous", wheel)


def present() -> Release:
    shutil.rmtree(BUILT / "dist", ignore_errors=True)
    _build(ROOT, BUILT / "dist")
    (wheel,) = (BUILT / "dist").glob("*.whl")
    return _installed("present", wheel)


def _build(source: Path, into: Path) -> None:
    # What an earlier build left would be packed too.
    shutil.rmtree(source / "build" / "lib", ignore_errors=True)
    tool = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(into)]
    _run(sys.executable, *tool, str(source), cwd=source)


def _installed(name: str, wheel: Path) -> Release:
    """Install what this clone needs, as it is pinned, then the wheel and what it needs beside that:
    the previous release had libraries that this one has not."""
    environment = BUILT / name
    venv.create(environment, with_pip=True, clear=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    needed = ROOT / "requirements" / "product.txt"
    _run(*pip, "--no-deps", "--require-hashes", "--requirement", str(needed), cwd=BUILT)
    _run(*pip, str(wheel), cwd=BUILT)
    return Release(name, environment / "bin")


def _run(*command: str, cwd: Path) -> bytes:
    done = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        timeout=STEP_S,
        check=False,
        stdin=subprocess.DEVNULL,
        # By it pip would find the clone, and call the wheel installed.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {said}")
    return done.stdout
