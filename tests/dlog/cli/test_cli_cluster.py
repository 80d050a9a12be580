"""``dlog cluster``: what operators are told of the level, and what they do about it."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from ledger.cluster import decode_instance, encode_instance
from ledger.feature_level import LEVEL_MAX, ClusterLevel
from ledger.metastore import open_store
from ledger.metastore.ops import INSTANCE
from ledger.metastore.port import MetadataStore, create_node
from ledger.registry import COOKIES
from ledger.wire import metadata_pb2 as pb
from tests.dlog.cli.cli_shell import command
from tests.waiting import PATIENCE_S, SESSION_S

pytestmark = pytest.mark.usefixtures("without_bookies")
cluster = partial(command, "cluster")


def changed(change: Callable[[MetadataStore], Awaitable[object]]) -> None:
    async def run() -> None:
        store = await open_store(
            os.environ["DLOG_URI"], session_timeout_s=SESSION_S, timeout_s=PATIENCE_S
        )
        try:
            await change(store)
        finally:
            await store.close()

    asyncio.run(run())


def put(held: ClusterLevel) -> None:
    async def change(store: MetadataStore) -> None:
        instance, _ = decode_instance((await store.get(INSTANCE)).value)
        await store.set(INSTANCE, encode_instance(instance, held))

    changed(change)


async def _known(store: MetadataStore) -> None:
    await create_node(store, COOKIES)
    await store.create(f"{COOKIES}/b9", pb.CookieNode(bookie="b9").SerializeToString())


def level() -> object:
    return json.loads(cluster("status", "--json").stdout)["level"]


def test_a_cluster_rises_when_it_is_told_to_and_only_then() -> None:
    put(ClusterLevel())
    shown = cluster("status").stdout
    assert "record batch 6" in shown
    assert "can rise" in shown
    cluster("upgrade", "--dry-run")
    assert level() == 1
    assert f"at level {LEVEL_MAX} now; it was at 1" in cluster("upgrade").stderr
    assert level() == LEVEL_MAX
    assert f"at level {LEVEL_MAX} already" in cluster("upgrade").stderr
    told = json.loads(cluster("upgrade", "--json").stdout)
    assert told == {"before": LEVEL_MAX, "level": LEVEL_MAX, "late": []}


def test_who_is_in_the_way_is_named_with_what_to_do() -> None:
    put(ClusterLevel())
    changed(_known)
    for arguments in (["upgrade"], ["upgrade", "--dry-run"]):
        refused = cluster(*arguments, code=1)
        assert "b9 does not run" in refused.stderr + refused.stdout
    seen = json.loads(cluster("status", "--json").stdout)
    assert seen["bookies"] == [{"bookie": "b9", "reads": None}]
    assert "start it with this release" in seen["obstacles"][0]
    assert level() == 1


def test_a_cluster_of_a_newer_level_is_refused_and_still_shown() -> None:
    put(ClusterLevel(LEVEL_MAX + 1, needs="9.0.0"))
    assert "install dlog 9.0.0 or newer" in cluster("upgrade", code=1).stderr
    assert level() == LEVEL_MAX + 1


def test_status_says_that_the_level_can_rise_or_that_a_rise_was_not_finished() -> None:
    put(ClusterLevel())
    findings = json.loads(command("status", "--json", code=1).stdout)["findings"]
    assert "level-low" in {each["kind"] for each in findings}
    put(ClusterLevel(1, LEVEL_MAX))
    findings = json.loads(command("status", "--json", code=1).stdout)["findings"]
    assert "level-unfinished" in {each["kind"] for each in findings}
