"""The web services on replicas: a leader is killed, and a repeated request has one effect."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from dlog import NotLeader
from dlog.aio import leader_of
from dlog.aio.namespace_connection import connected
from dlog.local.cluster import LocalCluster
from examples import accounts_gunicorn
from leader import candidates
from tests.examples.programs import ROOT, program
from tests.waiting import PATIENCE_S, SESSION_S, eventually

pytestmark = pytest.mark.integration


class Client:
    """Sends each request to any of the services until one of them answers it."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.redirected = self.repeated = 0
        self._http = httpx.AsyncClient(follow_redirects=True, timeout=PATIENCE_S)

    async def send(self, method: str, path: str, **how: Any) -> httpx.Response:
        while True:
            try:
                response = await self._http.request(method, f"{self.addresses[0]}{path}", **how)
            except httpx.TransportError:  # of it, or of the leader to which it redirects
                response = None
            if response is not None and response.status_code != 503:
                self.redirected += len(response.history)
                return response
            self.repeated += 1
            self.addresses.append(self.addresses.pop(0))
            await asyncio.sleep(0.01)  # the next leader may not be there yet

    async def add(self, amount: int, number: int) -> Any:
        key = {"Idempotency-Key": f"client:{number}"}
        response = await self.send("POST", f"/accounts/alice?amount={amount}", headers=key)
        assert response.status_code == 200, response.text
        return response.json()["balance"]

    async def close(self) -> None:
        await self._http.aclose()


async def test_a_repeated_post_has_one_effect_when_the_leading_service_is_killed(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(LocalCluster(tmp_path))
        services = {}
        for _ in range(3):
            service = await stack.enter_async_context(
                program(
                    "accounts_service", "--snapshots", str(tmp_path / "snapshots"), uri=cluster.uri
                )
            )
            services[(await service.hear("serves http")).split()[-1]] = service
        client = Client(list(services))
        stack.push_async_callback(client.close)
        assert await client.add(5, 1) == 5
        leader = await leader_of("accounts", uri=cluster.uri)
        assert leader is not None
        led = leader.address

        async def is_redirected() -> bool:  # by a follower, which may not know the leader yet
            client.addresses.sort(key=lambda address: address == led)
            client.redirected = 0
            assert await client.add(2, 2) == 7
            return client.redirected == 1

        await eventually(is_redirected, "a follower redirects to the leader")
        services[leader.address].kill()
        assert await client.add(2, 2) == 7, "done before"
        assert await client.add(1, 3) == 8
        for address in set(services) - {leader.address}:
            client.addresses = [address]
            response = await client.send("GET", "/accounts/alice")
            assert response.json()["balance"] == 8
            response = await client.send("GET", "/accounts/alice?stale=1")
            assert response.json()["age_s"] >= 0
        key = {"Idempotency-Key": "client:4"}
        response = await client.send("POST", "/accounts/alice?amount=-9", headers=key)
        assert response.status_code == 409
        for wrong in ("nonsense", ":1", "client:-1"):
            key = {"Idempotency-Key": wrong}
            response = await client.send("POST", "/accounts/alice?amount=1", headers=key)
            assert response.status_code == 400, wrong
        assert (await client.send("GET", "/health")).json()["role"] in ("leader", "standby")


@asynccontextmanager
async def server_process(
    uri: str, *arguments: str, pythonpath: Path = ROOT
) -> AsyncIterator[Process]:
    environment = {"DLOG_URI": uri, "DLOG_SESSION_TIMEOUT_S": str(SESSION_S)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments, "--bind", "127.0.0.1:0"),
        cwd=ROOT,
        env={**os.environ, **environment, "PYTHONPATH": f"{ROOT}:{pythonpath}"},
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()


async def follower(uri: str) -> str:
    """Return the address of a worker that follows, as soon as one does: a worker that is forked
    in place of a dead one, or that was slow to start, follows later than another leads."""
    found: list[str] = []

    async def follows() -> bool:
        for candidate in await candidates(ledgers.store, "accounts"):  # one of them may be dead
            with suppress(httpx.TransportError):
                response = await http.get(f"{candidate.address}/accounts/alice?stale=1")
                if response.json()["role"] == "standby":
                    found.append(candidate.address)
        return bool(found)

    async with httpx.AsyncClient(timeout=PATIENCE_S) as http, connected(uri, None) as ledgers:
        await eventually(follows, "a worker follows")
    return found[0]


async def heard(process: Process, word: str) -> str:
    """Return the next line with *word* that it writes to standard error."""
    assert process.stderr is not None
    while word not in (line := (await process.stderr.readline()).decode()):
        assert line, f"it ended without {word!r}"
    return line


async def test_a_repeated_post_has_one_effect_when_the_leading_worker_is_killed(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(LocalCluster(tmp_path))
        server = await stack.enter_async_context(
            server_process(cluster.uri, "examples.accounts_gunicorn")
        )
        address = (await heard(server, "Listening at")).split("Listening at: ")[1].split()[0]
        client = Client([address])
        stack.push_async_callback(client.close)
        assert await client.add(5, 1) == 5
        leader = await leader_of("accounts", uri=cluster.uri)
        assert leader is not None
        worker = int(leader.candidate.rpartition(":")[2])
        assert worker != server.pid
        os.kill(worker, signal.SIGKILL)
        assert await client.add(5, 1) == 5, "done before"
        assert await client.add(1, 2) == 6

        client.addresses = [await follower(cluster.uri)]
        client.redirected = 0
        assert await client.add(1, 3) == 7
        assert client.redirected == 1, "by a worker that follows, to the one that leads"
        assert (await client.send("GET", "/accounts/alice")).json()["balance"] == 7
        assert (await client.send("POST", "/accounts/alice?amount=1")).status_code == 400


def test_a_redirect_has_the_path_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    class Follower:
        def submit(self, *_: object, **__: object) -> object:
            raise NotLeader("accounts", "a", "http://a", 1)

    monkeypatch.setattr(accounts_gunicorn, "replica", Follower(), raising=False)
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/accounts/M\u00c3\u00bcller?\r\nSet-Cookie: a=b",  # UTF-8, as WSGI decodes it
        "QUERY_STRING": "amount=1",
        "HTTP_IDEMPOTENCY_KEY": "client:1",
    }
    _, _, headers = accounts_gunicorn.answer(environ)
    path = "/accounts/M%C3%BCller%3F%0D%0ASet-Cookie%3A%20a%3Db"
    assert headers == {"Location": f"http://a{path}?amount=1"}


async def test_a_replica_that_was_opened_before_the_fork_says_so_in_the_worker(
    tmp_path: Path,
) -> None:
    (tmp_path / "preloaded.py").write_text(
        "from dlog import Replica\n"
        "from examples.accounts_service import Accounts\n"
        "replica = Replica.open('accounts', Accounts())\n"
        "def application(environ, start_response):\n"
        "    replica.read(len)\n"
    )
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(LocalCluster(tmp_path / "cluster"))
        server = await stack.enter_async_context(
            server_process(
                cluster.uri, "gunicorn", "--preload", "preloaded:application", pythonpath=tmp_path
            )
        )
        address = (await heard(server, "Listening at")).split("Listening at: ")[1].split()[0]
        async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
            asking = asyncio.create_task(http.get(address))
            said = await heard(server, "UsedAfterFork: ")
            assert "'accounts' was opened before this process was forked" in said
            assert (await asking).status_code == 500
