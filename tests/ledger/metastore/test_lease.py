"""A session as its owner sees it."""

import asyncio

from ledger.metastore.session import Lease, trusted_s
from tests.waiting import SESSION_S, until


def lease_of(timeout_s: float, ends: list[str]) -> tuple[Lease, float]:
    now = asyncio.get_running_loop().time()
    lease = Lease("s", proven_at=now, timeout_s=timeout_s, on_lost=lambda: ends.append("lost"))
    return lease, now


async def test_without_an_answer_it_is_lost_once_and_not_before_it_is_due() -> None:
    ends: list[str] = []
    lease, began = lease_of(0.03, ends)
    await until(lease.session.lost.is_set, "it is lost")
    assert asyncio.get_running_loop().time() >= began + trusted_s(0.03)
    lease.end()
    assert ends == ["lost"]


async def test_an_answer_that_is_late_takes_nothing_from_a_newer_one() -> None:
    ends: list[str] = []
    lease, began = lease_of(SESSION_S, ends)
    lease.prove(began + 1.0)
    lease.prove(began - 10 * SESSION_S)  # sent long before, and answered now
    lease._check()
    assert not lease.session.lost.is_set()
    lease.end()
    assert ends == ["lost"]
