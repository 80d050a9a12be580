"""What a row is measured under is held from before the first round until after the last."""

import asyncio
import fcntl
from pathlib import Path

import pytest

from benchmarks.peers.holding import held
from benchmarks.peers.jars import PeerMissing

pytestmark = pytest.mark.integration


def is_locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


async def test_a_lock_is_held_inside_and_free_again_after(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    async with held(f"flock {lock}") as check:
        assert is_locked(lock)
        check()
    assert not is_locked(lock)


async def test_a_command_that_ends_too_early_is_told() -> None:
    with pytest.raises(PeerMissing, match="`false` ended with 1 before the row did"):
        async with held("false"):
            pass


async def test_nothing_is_held_where_nothing_is_asked_for() -> None:
    async with held("") as check:
        check()


async def test_who_still_waits_can_be_interrupted(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    async with held(f"flock {lock}"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), held(f"flock {lock}"):
                pass
    assert not is_locked(lock)
