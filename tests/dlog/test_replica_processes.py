"""Replicas as real processes: the leader is killed, its client repeats, nothing is done twice."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dlog.aio.admin import log_info
from dlog.aio.maintain.snapshot_check import check_store
from dlog.local.cluster import LocalCluster
from tests.dlog.archive.s3_server import BUCKET, s3
from tests.waiting import eventually

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
COMMANDS = 300
KILLS = (70, 190)
"""In the middle of these commands."""
FORWARD_KILLS = (40, 110, 180, 250)


class Member:
    """Keeps what its process said until it is looked for."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._said: list[dict[str, Any]] = []

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def hear(self, *events: str) -> dict[str, Any]:
        """Return the next of *events*; an event "died" when there will be none."""
        while True:
            for said in self._said:
                if said["event"] in events:
                    self._said.remove(said)
                    return said
            assert self.process.stdout is not None
            line = await self.process.stdout.readline()
            if not line:
                return {"event": "died"}
            self._said.append(json.loads(line))


@asynccontextmanager
async def member(
    uri: str, name: str, snapshots: str | None, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Member]:
    command = [sys.executable, "-m", "tests.dlog.replica_member", uri, name]
    if snapshots is not None:
        command.append(snapshots)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=PIPE,
        cwd=ROOT,
        limit=1 << 24,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield Member(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("kept", ["directory", "s3"])
async def test_nothing_is_lost_or_done_twice_when_leaders_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """With S3 some requests are refused (503), broken, or done without an answer."""
    async with AsyncExitStack() as stack:
        storage = None
        snapshots = f"file://{tmp_path}/snapshots"
        if kept == "s3":
            storage = stack.enter_context(s3(monkeypatch, seed=5))
            storage.rate = 0.15
            snapshots = f"s3://{BUCKET}/snapshots"
        cluster = await stack.enter_async_context(LocalCluster(tmp_path / "cluster"))

        async def begun(name: str) -> Member:
            running = member(cluster.uri, name, snapshots)
            begun = await stack.enter_async_context(running)
            await begun.hear("open")
            return begun

        leader = await begun("a")
        await leader.hear("leads")
        followers = [await begun("b"), await begun("c")]
        unknown = 0
        number = 1
        while number <= COMMANDS:
            leader.tell(f"submit {number}")
            if number in KILLS and followers:
                await asyncio.sleep(0)
                leader.process.kill()
            said = await leader.hear("result", "error")
            if said["event"] == "result":
                assert said["result"] == number, "each has one effect, in order"
                number += 1
                continue
            unknown += 1
            assert said["event"] == "died" or said["error"] in (
                "NotLeader",
                "CommandOutcomeUnknown",
            )
            waits = [asyncio.create_task(each.hear("leads")) for each in followers]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            successor = followers[[each.done() for each in waits].index(True)]
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            followers.remove(successor)
            leader = successor
        assert unknown > 0, "a leader was killed before it could answer"
        late = await begun("d")  # from a snapshot, as the log was truncated
        for replica in (leader, late):
            replica.tell("read")
            assert (await replica.hear("done"))["numbers"] == list(range(1, COMMANDS + 1))
        assert (await log_info("accounts", uri=cluster.uri)).tail.first_offset > 0
        if storage is not None:
            assert {"refused", "broken", "unanswered"} <= storage.seen.keys()
            report = await check_store("accounts", snapshots, read=True, uri=cluster.uri)
            assert {each.state for each in report.snapshots} == {"whole"}
            assert report.problems == ()


async def test_the_log_waits_for_a_replica_without_snapshots_until_it_dies(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(LocalCluster(tmp_path / "cluster"))

        async def begun(name: str, snapshots: str | None) -> Member:
            begun = await stack.enter_async_context(member(cluster.uri, name, snapshots))
            await begun.hear("open")
            return begun

        async def first_offset() -> int:
            return (await log_info("accounts", uri=cluster.uri)).tail.first_offset

        leader = await begun("a", f"file://{tmp_path}/snapshots")
        await leader.hear("leads")
        slow, dying = await begun("slow", None), await begun("dying", None)
        numbers = iter(range(1, 10**6))

        async def submitted(count: int) -> int:
            for number in islice(numbers, count):
                leader.tell(f"submit {number}")
                assert (await leader.hear("result", "error"))["event"] == "result"
            return number

        async def may_be_truncated() -> bool:
            await submitted(50)
            return await first_offset() > 2

        written = tmp_path.joinpath("snapshots").glob
        while len(list(written("*/*.snapshot"))) < 2:  # as many as are kept
            await submitted(50)
        await submitted(100)
        assert await first_offset() <= 2, "neither has applied more than the mark of the leader"
        slow.tell("go")
        dying.process.kill()
        await eventually(may_be_truncated)
        last = await submitted(1)
        slow.tell("read")
        assert (await slow.hear("done"))["numbers"] == list(range(1, last + 1))


@pytest.mark.parametrize("tls", [False, True])
async def test_forwarded_commands_are_done_once_though_one_leader_after_the_other_is_killed(
    tmp_path: Path, *, tls: bool
) -> None:
    async with AsyncExitStack() as stack:
        running = LocalCluster(tmp_path / "cluster", tls=tls)
        cluster = await stack.enter_async_context(running)
        members: list[Member] = []

        async def begin(name: str) -> None:
            snapshots = f"file://{tmp_path}/snapshots"
            begun = member(cluster.uri, name, snapshots, cluster.environment)
            members.append(await stack.enter_async_context(begun))
            await members[-1].hear("open")

        async def is_leader(one: Member) -> bool:
            one.tell("role")
            return bool((await one.hear("role"))["role"] == "leader")

        async def leaders() -> list[Member]:
            return [one for one in members if await is_leader(one)]

        async def is_led() -> bool:
            return len(await leaders()) == 1

        async def forwarded(by: Member, number: int) -> int:
            by.tell(f"forward {number}")
            said = await by.hear("result", "error")
            assert said["event"] == "result", said
            return int(said["result"])

        for name in ("a", "b", "c"):
            await begin(name)
        for number in range(1, COMMANDS + 1):
            by = members[number % len(members)]
            if number in FORWARD_KILLS:
                await eventually(is_led)
                [leader] = await leaders()
                by = next(one for one in members if one is not leader)
                by.tell(f"forward {number}")
                await asyncio.sleep(0)
                leader.process.kill()
                members.remove(leader)
                said = await by.hear("result", "error")
                assert (said["event"], said.get("result")) == ("result", number)
                await begin(f"instead-{number}")
                for one in members:
                    assert await forwarded(one, number) == number, "and one result"
            else:
                assert await forwarded(by, number) == number, "each has one effect, in order"
        for one in members:
            one.tell("read")
            assert (await one.hear("done"))["numbers"] == list(range(1, COMMANDS + 1))
