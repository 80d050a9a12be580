"""The replicated key-value store loses and doubles nothing when its leader dies."""

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dlog.local.cluster import LocalCluster
from tests.examples.programs import Program, program
from tests.waiting import SESSION_S

pytestmark = pytest.mark.integration

CHANGES = 400
SHORT_SESSION_S = 10.0
"""Its end is waited for; and it is to bear a machine that stands still before."""


class Client:
    """Asks one process, and another if it gets no answer."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.asked_again = 0

    async def ask(self, request: str) -> str:
        while True:
            try:
                if self._connection is None:
                    self._connection = await asyncio.open_connection("127.0.0.1", self._ports[0])
                reader, writer = self._connection
                writer.write(f"{request}\n".encode())
                answer = (await reader.readline()).decode().strip()
            except ConnectionError:
                answer = ""
            if answer and answer != "retry":
                return answer
            self.close()
            self.asked_again += 1
            self._ports.append(self._ports.pop(0))

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None


async def port(store: Program) -> int:
    return int((await store.hear("on port")).split()[-1])


async def test_nothing_is_lost_or_doubled_when_the_leader_is_killed(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(LocalCluster(tmp_path))
        leader = await stack.enter_async_context(program("kv_store", "0", uri=cluster.uri))
        ports = [await port(leader)]
        await leader.hear("leader on port")
        follower = await stack.enter_async_context(program("kv_store", "0", uri=cluster.uri))
        ports.append(await port(follower))
        client = Client(ports)
        stack.callback(client.close)
        assert await client.ask("set colour blue 0") == "ok blue"
        for change_id in range(1, CHANGES + 1):
            if change_id == CHANGES // 2:
                asyncio.get_running_loop().call_later(0.005, leader.kill)
            answer = await client.ask(f"add counter 1 {change_id}")
            assert answer == f"ok {change_id}"
        await follower.hear("leader on port")
        assert client.asked_again > 0
        assert await client.ask("get colour") == "ok blue"
        assert await client.ask(f"add counter 1 {CHANGES}") == f"ok {CHANGES}", "done before"
        assert await client.ask("get nothing") == "none"
        changes = f"add colour 1 {CHANGES + 1}"
        assert await client.ask(changes) == "none", "blue is no number, and nobody stops for that"
        nonsense = ("sing", "set colour red one", f"set colour red {2**63}", "set colour red -1")
        for request in nonsense:
            assert await client.ask(request) == "bad"
        client.close()
        status, errors = await follower.interrupt()
        assert status == 0
        assert "Traceback" not in errors


async def test_a_leader_that_was_stopped_serves_nothing_old_when_it_wakes(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(LocalCluster(tmp_path))
        stores, ports = [], []
        for session_s in (SHORT_SESSION_S, SESSION_S):
            running = program("kv_store", "0", uri=cluster.uri, session_timeout_s=session_s)
            stores.append(await stack.enter_async_context(running))
            ports.append(await port(stores[-1]))
            if not stores[1:]:
                await stores[0].hear("leader on port")
        leader, follower = stores
        both = Client(list(ports))
        stack.callback(both.close)
        assert await both.ask("set colour blue 0") == "ok blue"
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        stack.callback(writer.close)
        leader.process.send_signal(signal.SIGSTOP)
        await follower.hear("leader on port")
        # Asked while it sleeps, so that it reads the question as soon as it wakes.
        writer.write(b"get colour\nset colour green 1\n")
        both.close()
        asking = Client([ports[1]])
        stack.callback(asking.close)
        assert await asking.ask("set colour red 1") == "ok red"
        leader.process.send_signal(signal.SIGCONT)
        said = [(await reader.readline()).decode().strip() for _ in range(2)]
        assert said[0] in ("ok red", "retry")
        assert said[1] in ("ok red", "retry"), "it is the request that was done before"
        await leader.hear("standby on port")
        assert await asking.ask("get colour") == "ok red"
        follower.kill()
        await leader.hear("leader on port")
        both = Client([ports[0]])
        stack.callback(both.close)
        assert await both.ask("set colour red 1") == "ok red", "done before"
        assert await both.ask("get colour") == "ok red"
