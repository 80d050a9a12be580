"""What others are measured by is fetched, or it is said in a sentence why not."""

from pathlib import Path

import pytest

from benchmarks.peers import jars
from benchmarks.peers.jars import PeerMissing, fetched


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(jars.VARIABLE, str(tmp_path))
    return tmp_path


def test_without_maven_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PeerMissing, match="Maven is not on the PATH; with it org:a:1 is fetched"):
        fetched(["org:a:1"])


def test_what_was_fetched_is_not_fetched_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(artifacts: list[str], directory: Path) -> None:
        directory.mkdir()
        (directory / "a-1.jar").touch()
        fetching.append(artifacts)

    fetching: list[list[str]] = []
    monkeypatch.setattr(jars, "_fetch", fetch)
    for _ in range(2):
        assert [each.name for each in fetched(["org:a:1"])] == ["a-1.jar"]
    assert fetching == [["org:a:1"]]
    fetched(["org:a:2"])
    assert len(fetching) == 2


def test_what_was_fetched_in_part_is_fetched_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: list[str], directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        (directory / "a-1.jar").touch()
        raise PeerMissing("the network went away")

    monkeypatch.setattr(jars, "_fetch", fail)
    for _ in range(2):
        with pytest.raises(PeerMissing):
            fetched(["org:a:1"])
