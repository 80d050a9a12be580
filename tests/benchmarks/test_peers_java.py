"""The peers' clients in Java compile, where there is something to compile them with and against."""

import shutil
from pathlib import Path

import pytest

from benchmarks.peers import bookkeeper, kafka
from benchmarks.peers.jars import cache, folder_of
from benchmarks.peers.java import SOURCES, compiled
from benchmarks.peers.systems import KAFKA_VERSION

PROGRAMS = {
    "KafkaPeer": kafka.artifacts(KAFKA_VERSION),
    "DistributedLogPeer": bookkeeper.ARTIFACTS,
    "BookKeeperPeer": bookkeeper.ARTIFACTS,
}


def test_each_program_is_known_here() -> None:
    assert {path.stem for path in SOURCES.glob("*.java")} == {*PROGRAMS, "Loops"}


@pytest.mark.integration
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_client_compiles(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("javac") is None:
        pytest.skip("there is no javac on the PATH")
    jars = sorted(folder_of(PROGRAMS[program]).glob("*.jar"))
    if not jars:
        pytest.skip(f"make bench-peers has not fetched {PROGRAMS[program][0]} into {cache()}")
    monkeypatch.setenv("DLOG_PEER_JARS", str(tmp_path))
    classes = compiled(program, jars)
    assert (classes / f"{program}.class").exists()
    assert compiled(program, jars) == classes
