"""The demo hears its roles, and leaves no process behind, whatever they do."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dlog.demo.supervisor import RoleFailed, child_processes, supervisor
from tests.waiting import PATIENCE_S, alive

pytestmark = pytest.mark.integration


def test_a_role_is_heard_and_its_library_chatter_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path, package="tests.examples.roles") as roles:
            role = await roles.start("talker", "7")
            event = await role.wait_for("ready", PATIENCE_S)
            assert event["number"] == 7
            await role.tell("go")
            assert (await role.wait_for("heard", PATIENCE_S))["word"] == "go"
            await role.process.wait()
            roles.check()

    asyncio.run(scenario())
    assert "chatter" in (tmp_path / "talker.log").read_text(encoding="utf-8")


def test_a_role_that_fails_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path, package="tests.examples.roles") as roles:
            role = await roles.start("talker", "7")
            await role.tell("fail")
            await role.wait_for("never", PATIENCE_S)

    with pytest.raises(RoleFailed, match=r"talker ended before[\s\S]*told to fail"):
        asyncio.run(scenario())


def test_a_role_that_says_nothing_is_given_up_in_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path, package="tests.examples.roles") as roles:
            role = await roles.start("talker", "7")
            await role.wait_for("never", 0.05)

    with pytest.raises(RoleFailed, match="did not say 'never'"):
        asyncio.run(scenario())


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_role_leaves_behind_in_a_group_of_its_own_is_ended_too(
    tmp_path: Path, killed: bool
) -> None:
    async def scenario() -> int:
        async with supervisor(tmp_path, package="tests.examples.roles") as roles:
            role = await roles.start("leaver")
            child = (await role.wait_for("left", PATIENCE_S))["child"]
            assert isinstance(child, int)
            assert alive(child)
            if killed:
                role.kill()
                roles.dismiss(role)
            return child

    assert not alive(asyncio.run(scenario()))


def test_children_are_listed_while_threads_end() -> None:
    ended = threading.Event()

    def start_threads() -> None:
        while not ended.is_set():
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()

    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    starters = [threading.Thread(target=start_threads) for _ in range(3)]
    for starter in starters:
        starter.start()
    try:
        for _ in range(300):
            assert child.pid in child_processes()
    finally:
        ended.set()
        for starter in starters:
            starter.join()
        child.communicate()
