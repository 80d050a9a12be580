"""Whether and when a bookie of the local cluster is started again."""

from itertools import pairwise
from pathlib import Path

import pytest

from dlog.local.bookie_process import DEATHS_MAX, DEATHS_WITHIN_S, BookieKeeper, BookieProcess


class Dying(BookieProcess):
    """Ends with *status* as soon as it is started."""

    def __init__(self, directory: Path, status: int) -> None:
        super().__init__(
            "bookie-0", directory, bookie="bookie-0", uri="memory://x", log_path=directory / "log"
        )
        self.log_path.touch()
        self.status = status
        self.lives = False
        self.starts = 0

    @property
    def exit_code(self) -> int | None:
        return None if self.lives else self.status

    @property
    def running(self) -> bool:
        return self.lives

    @property
    def pid(self) -> int:
        return 1000 + self.starts

    def start(self) -> None:
        self.starts += 1


def looks(keeper: BookieKeeper, seconds: float, begin: float = 0.0) -> list[tuple[float, str]]:
    """Look four times a second; return what was said, and when."""
    times = [begin + tick / 4 for tick in range(round(4 * seconds))]
    return [(now, sentence) for now in times if (sentence := keeper.look(now))]


def test_pauses_double_up_and_after_several_deaths_within_a_minute_it_stays_down(
    tmp_path: Path,
) -> None:
    process = Dying(tmp_path, -11)
    said = looks(BookieKeeper(process), 300)
    *again, (_, last) = said
    assert process.starts == len(again) == DEATHS_MAX - 1
    times = [now for now, _ in again]
    pauses = [late - early for early, late in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 2 * pauses[0]
    assert all("ended with exit code -11 and was started again" in each for _, each in again)
    assert "bookie-0 ended with exit code -11 and is not started again" in last
    assert f"it died {DEATHS_MAX} times within 60 s" in last


def test_deaths_that_are_far_apart_do_not_add_up(tmp_path: Path) -> None:
    process = Dying(tmp_path, 1)
    keeper = BookieKeeper(process)
    for turn in range(3 * DEATHS_MAX):
        [(_, sentence)] = looks(keeper, 0.75, turn * DEATHS_WITHIN_S)
        assert "was started again" in sentence
        process.lives = True
        assert keeper.look(turn * DEATHS_WITHIN_S + 1) == ""
        process.lives = False


@pytest.mark.parametrize(("status", "reason"), [(0, "it was stopped"), (3, "its name is retired")])
def test_who_was_stopped_or_lost_its_name_is_left_alone(
    tmp_path: Path, status: int, reason: str
) -> None:
    process = Dying(tmp_path, status)
    [(_, sentence)] = looks(BookieKeeper(process), 100)
    assert f"exit code {status} and is not started again: {reason}" in sentence
    assert process.starts == 0


def test_one_that_cannot_be_started_is_tried_again_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Dying(tmp_path, 1)

    def start() -> None:
        process.starts += 1
        raise OSError(11, "too many processes")

    monkeypatch.setattr(process, "start", start)
    said = looks(BookieKeeper(process), 100)
    assert process.starts == DEATHS_MAX - 1
    assert "could not be started again: [Errno 11] too many processes" in said[0][1]
    assert "is not started again" in said[-1][1]
