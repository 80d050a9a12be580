"""What others are measured by is fetched, or it is said in a sentence why not."""

import os
import shutil
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as running
from benchmarks.peers import jars
from benchmarks.peers.jars import PeerMissing, fetched
from benchmarks.peers.rows import QUICK, Measured, On, Row, warmed
from benchmarks.peers.systems import AIO, KAFKA, Cluster
from benchmarks.peers.uncached import let_go


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


async def test_a_peer_that_fails_is_left_out_of_the_round_and_its_next_client_gets_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []
    warm: list[str] = []

    async def measure(_: On, system: str, __: float) -> Measured:
        if system in failing:
            raise PeerMissing("it hangs")
        return {"a": 1.0}

    async def forget(_: Cluster, system: str) -> None:
        ended.append(system)

    async def warmed(_: On, systems: Iterable[str]) -> None:
        warm.extend(systems)

    monkeypatch.setattr(Cluster, "forget", forget)
    monkeypatch.setattr(running, "warmed", warmed)
    on, row = On(Cluster(tmp_path), QUICK), Row(measure, (AIO, KAFKA))
    failing = {KAFKA}
    assert await running.one_round(on, row, row.systems) == {AIO: {"a": 1.0}}
    assert ended == warm == [KAFKA]
    assert "a round without Kafka: it hangs" in capsys.readouterr().err
    failing = {AIO}
    with pytest.raises(PeerMissing):
        await running.one_round(on, row, row.systems)


class _Client:
    """Of a peer that fails *fails* times."""

    def __init__(self, fails: int) -> None:
        self.fails = fails

    async def ask(self, *_: object) -> Mapping[str, object]:
        if self.fails:
            self.fails -= 1
            raise PeerMissing("it hangs")
        return {}


@pytest.mark.parametrize(
    ("system", "fails", "forgotten", "warm"),
    [(KAFKA, 2, 2, True), (KAFKA, 3, 2, False), (AIO, 1, 0, False)],
)
async def test_a_peer_that_fails_gets_warm_at_the_third_try_at_last_and_dlog_at_the_first(
    system: str, fails: int, forgotten: int, *, warm: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ended: list[str] = []
    client = _Client(fails)

    async def made(_: Cluster, __: str) -> _Client:
        return client

    async def forget(_: Cluster, system: str) -> None:
        ended.append(system)

    monkeypatch.setattr(Cluster, "client", made)
    monkeypatch.setattr(Cluster, "forget", forget)
    with nullcontext() if warm else pytest.raises(PeerMissing, match="it hangs"):
        await warmed(On(Cluster(tmp_path), QUICK), [system])
    assert ended == [system] * forgotten


def test_a_row_for_which_the_disk_has_no_room_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=49 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    options = Namespace(dir=tmp_path, quick=False)
    with pytest.raises(PeerMissing, match=r"49 GiB free, and lone needs 50; .* --only lone"):
        running.check_room("lone", options)
    running.check_room("lone", Namespace(dir=tmp_path, quick=True))


async def test_the_memory_of_the_system_is_let_go_of_before_each_measurement_of_an_uncached_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    async def measure(_: On, system: str, __: float) -> Measured:
        happened.append(system)
        return {}

    monkeypatch.setattr(running, "let_go", lambda directory: happened.append(directory.name))
    on = On(Cluster(tmp_path / "files"), QUICK)
    await running.one_round(on, Row(measure, (AIO, KAFKA)), (AIO, KAFKA))
    await running.one_round(on, Row(measure, (AIO,), uncached=False), (AIO,))
    assert happened == ["files", AIO, "files", KAFKA, AIO]


def test_what_is_no_file_is_passed_over_when_memory_is_let_go_of(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(bytes(10_000))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo")
    let_go(tmp_path)
    assert (tmp_path / "below" / "file").read_bytes() == bytes(10_000)
