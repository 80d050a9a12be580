"""A change that is meant for one log leaves another one alone that has its name since."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from dlog.aio import Log
from dlog.aio.admin import delete_log, log_info, seal_log, truncate_log, update_settings
from dlog.aio.port import Ledgers
from dlog.errors import NoSuchLog
from tests.dlog.fake_ledgers import FakeCluster

Change = Callable[[Ledgers, str], Awaitable[Any]]
CHANGES: Final[dict[str, Change]] = {
    "truncate": lambda at, life: truncate_log("a", before=1, incarnation=life, client=at),
    "seal": lambda at, life: seal_log("a", incarnation=life, client=at),
    "delete": lambda at, life: delete_log("a", incarnation=life, client=at),
    "settings": lambda at, life: update_settings(
        "a", {"codec": "none"}, incarnation=life, client=at
    ),
}


async def written(client: Ledgers) -> str:
    """Return the incarnation of a new log."""
    async with await Log.open("a", client=client) as log:
        await log.append_many([b"x", b"y"])
    return (await log_info("a", client=client)).manifest.incarnation


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_of_a_log_is_none_of_the_one_that_has_its_name_now(change: Change) -> None:
    client = FakeCluster().client()
    before = await written(client)
    await delete_log("a", client=client)
    now = await written(client)
    manifest = (await log_info("a", client=client)).manifest
    with pytest.raises(NoSuchLog, match="another one has its name"):
        await change(client, before)
    assert (await log_info("a", client=client)).manifest == manifest
    await change(client, now)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_an_incarnation_that_is_empty_is_nobodys(change: Change) -> None:
    client = FakeCluster().client()
    await written(client)
    with pytest.raises(NoSuchLog):
        await change(client, "")
