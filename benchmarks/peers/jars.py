"""Jars of Maven Central with all that they depend on, fetched once into a directory that is kept.

`DLOG_PEER_JARS` names it, else it is `peers` in the build directory. Maven is asked for what is
not there yet, with a pom that is made for it.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dlog.local.errors import JavaMissing
from dlog.local.java import find_java

VARIABLE: Final = "DLOG_PEER_JARS"
_DEFAULT: Final = Path("build/peers")
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_FETCH_S: Final = 600.0
_COMPLETE: Final = "complete"
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dlog.benchmarks</groupId><artifactId>peer</artifactId><version>1</version>
  <dependencies>
{}  </dependencies>
</project>
"""
_DEPENDENCY: Final = """    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
    </dependency>
"""


class PeerMissing(Exception):
    """Something is not on this machine, and a peer cannot be measured without it."""


def fetched(artifacts: Sequence[str]) -> list[Path]:
    """Return the jars of *artifacts*, `group:name:version` each, and of what they need.

    Raises `PeerMissing` with a sentence that says what is missing."""
    directory = folder_of(artifacts)
    if not (directory / _COMPLETE).exists():
        _fetch(artifacts, directory)
        (directory / _COMPLETE).touch()
    return sorted(directory.glob("*.jar"))


def folder_of(artifacts: Sequence[str]) -> Path:
    """Return where the jars of *artifacts* are, if they were fetched."""
    return cache() / "+".join(each.partition(":")[2].replace(":", "-") for each in artifacts)


def cache() -> Path:
    given = os.environ.get(VARIABLE)
    return Path(given).expanduser().absolute() if given else _DEFAULT.absolute()


def _fetch(artifacts: Sequence[str], directory: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerMissing(f"Maven is not on the PATH; with it {', '.join(artifacts)} is fetched")
    try:
        java = find_java()
    except JavaMissing as error:
        raise PeerMissing(str(error)) from error
    directory.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(_DEPENDENCY.format(*each.split(":")) for each in artifacts)
    pom = directory / "pom.xml"
    pom.write_text(_POM.format(dependencies))
    command = [maven, "--quiet", "--batch-mode", "--file", str(pom), _PLUGIN]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_FETCH_S,
            check=False,
            env={**os.environ, "JAVA_HOME": str(java.home)},
        )
    except subprocess.TimeoutExpired as error:
        raise PeerMissing(f"Maven did not fetch {artifacts} within {_FETCH_S:.0f} s") from error
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise PeerMissing(f"Maven cannot fetch {', '.join(artifacts)}: {(said or ['?'])[0]}")
