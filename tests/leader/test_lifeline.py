"""What a follower may conclude of the connection to the candidate before it."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace

import pytest

from leader import lifeline as lifeline_module
from leader.lifeline import FOLLOWERS_MAX, Lifeline, has_died
from leader.record import CandidateRecord
from leader.refusals import LifelineAddress
from tests.waiting import PATIENCE_S, until

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that takes long tells nothing; here nobody shall give up."""
    monkeypatch.setattr(lifeline_module, "CONNECT_S", PATIENCE_S)


async def test_the_end_of_the_process_is_noticed() -> None:
    async with asyncio.timeout(PATIENCE_S):
        lifeline = Lifeline.open(HOST)
        watching = asyncio.create_task(has_died(lifeline.address))
        done, _ = await asyncio.wait({watching}, timeout=0.2)
        assert not done, "it lives"
        lifeline.close()
        assert await watching


async def test_a_broken_connection_to_a_living_process_means_nothing() -> None:
    async with asyncio.timeout(PATIENCE_S):
        lifeline = Lifeline.open(HOST)
        watching = asyncio.create_task(has_died(lifeline.address))
        await until(lambda: lifeline.followers == 1, "it is followed")
        lifeline._let_go(next(iter(lifeline._followers)))
        assert not await watching
        lifeline.close()


async def test_strangers_take_a_bounded_number_of_connections_and_none_that_speaks_keeps_one() -> (
    None
):
    async with asyncio.timeout(PATIENCE_S):
        lifeline = Lifeline.open(HOST)
        port = lifeline.address.port
        strangers = [await asyncio.open_connection(HOST, port) for _ in range(FOLLOWERS_MAX)]
        await until(lambda: lifeline.followers == FOLLOWERS_MAX, "each has a connection")
        assert not await has_died(lifeline.address), "a follower too many learns nothing"
        assert lifeline.followers == FOLLOWERS_MAX
        strangers[0][1].write(b"GET / HTTP/1.1")
        await until(lambda: lifeline.followers < FOLLOWERS_MAX, "who speaks is a stranger")
        watching = asyncio.create_task(has_died(lifeline.address))
        await until(lambda: lifeline.followers == FOLLOWERS_MAX, "it is followed again")
        lifeline.close()
        assert await watching
        for _, connection in strangers:
            connection.close()


async def test_a_port_of_somebody_else_means_nothing_not_even_when_it_closes() -> None:
    """The port was given to another process, or the address is one of another machine."""
    async with asyncio.timeout(PATIENCE_S):
        lifeline = Lifeline.open(HOST)
        meant = replace(lifeline.address, secret=b"another process!")
        assert not await has_died(meant)
        lifeline.close()


async def test_a_port_that_refuses_from_the_start_tells_of_a_death_in_our_own_network_only() -> (
    None
):
    async with asyncio.timeout(PATIENCE_S):
        lifeline = Lifeline.open(HOST)
        lifeline.close()
        assert await has_died(lifeline.address)
        assert not await has_died(replace(lifeline.address, network="another machine"))


async def test_a_follower_that_comes_while_the_candidate_goes_is_let_go_too() -> None:
    def end_of(follower: socket.socket) -> None:
        with suppress(ConnectionResetError):
            while follower.recv(1024):
                pass

    for turns in range(8):  # the connection is taken in several turns of the loop
        lifeline = Lifeline.open(HOST)
        with socket.create_connection((HOST, lifeline.address.port)) as follower:
            for _ in range(turns):
                await asyncio.sleep(0)
            lifeline.close()
            follower.settimeout(PATIENCE_S)
            await asyncio.to_thread(end_of, follower)
        assert lifeline.followers == 0


def test_a_record_gives_back_its_lifeline() -> None:
    for lifeline in (None, LifelineAddress(HOST, 4711, b"secret", "stack")):
        record = CandidateRecord("me", 5, lifeline)
        assert CandidateRecord.decode(record.encode(), path="/x") == record
