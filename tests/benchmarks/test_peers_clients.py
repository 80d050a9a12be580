"""What a client process answers is found, and what goes wrong with one is said in a sentence."""

import sys
from pathlib import Path

import pytest

from benchmarks.peers.clients import Client
from benchmarks.peers.jars import PeerMissing

pytestmark = pytest.mark.integration

SERVES = """
from benchmarks.peers.commands import serve
def fail(name, *numbers):
    raise ValueError("there is no " + name)
def add(name, *numbers):
    print("a library says something")
    return {"sum": sum(numbers)}
def leave(name):
    raise SystemExit("it had enough")
serve({"add": add, "fail": fail, "leave": leave})
"""


async def test_a_client_answers_says_why_it_cannot_and_is_missed_when_it_is_gone(
    tmp_path: Path,
) -> None:
    client = await Client.start("one", [sys.executable, "-c", SERVES], tmp_path / "client.log")
    try:
        assert await client.ask("add", "name", 1, 2.5) == {"sum": 3.5}
        with pytest.raises(PeerMissing, match="one cannot fail: ValueError: there is no name"):
            await client.ask("fail", "name")
        assert await client.ask("add", "name") == {"sum": 0}
        with pytest.raises(PeerMissing, match="one ended: it had enough"):
            await client.ask("leave", "name")
    finally:
        await client.stop()
