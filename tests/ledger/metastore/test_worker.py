"""A thread that does blocking calls for an event loop."""

import asyncio
import threading

import pytest

from ledger.metastore.sqlite import _Worker
from tests.waiting import PATIENCE_S, settled


async def test_a_call_that_was_given_up_before_its_turn_is_not_done() -> None:
    worker, free = _Worker("test"), threading.Event()
    ran: list[str] = []
    first = asyncio.create_task(worker.run(free.wait, timeout_s=PATIENCE_S))
    await settled()
    with pytest.raises(TimeoutError):
        await worker.run(lambda: ran.append("second"), timeout_s=0.01)
    free.set()
    assert await first
    await worker.run(lambda: ran.append("third"), timeout_s=PATIENCE_S)
    assert ran == ["third"]
    worker.stop()
