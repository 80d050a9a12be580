"""The standby for threads, on ledgers in memory that live on the facade's loop thread."""

import threading
from collections.abc import Sequence

import pytest

import dlog
import dlog.testing
from dlog import Record
from dlog.aio.port import Ledgers
from dlog.sync.loop_thread import LoopThread
from ledger.log_events import now_ms
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import PATIENCE_S, settled


def test_nothing_is_applied_any_more_when_closing_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()

    async def connect(_: str | None) -> Ledgers:
        return cluster.client(MemoryStore("memory://sync standby", "sync standby"))

    for module in ("log", "standby"):
        monkeypatch.setattr(f"dlog.aio.{module}.connect", connect)
    began, go_on = threading.Event(), threading.Event()
    happened: list[str] = []

    def apply(_: Sequence[Record]) -> None:
        began.set()
        go_on.wait(PATIENCE_S)
        happened.append("applied")

    standby = dlog.Standby.open("log", apply)
    with dlog.Log.open("log") as log:
        log.append(b"a")
    assert began.wait(PATIENCE_S)

    def close() -> None:
        standby.close()
        happened.append("closed")

    closing = threading.Thread(target=close)
    closing.start()
    while standby._inner._closing is None:
        LoopThread.get().run(settled())
    LoopThread.get().run(settled())  # only the thread that applies is waited for now
    assert not standby._inner._closing.done()
    go_on.set()
    closing.join(PATIENCE_S)
    assert happened == ["applied", "closed"]


def test_clients_learn_who_leads_a_log_and_where_it_is_reached() -> None:
    with dlog.testing.cluster() as cluster:
        began_ms = now_ms()
        assert dlog.leader_of("log", uri=cluster.uri) is None
        stands = dlog.Candidate("app-1", "https://app-1:8000")
        with dlog.Standby.open("log", lambda _: None, uri=cluster.uri, candidate=stands) as leader:
            leader.promote()
            found = dlog.leader_of("log", uri=cluster.uri)
            assert found is not None
            assert (found.candidate, found.address) == ("app-1", "https://app-1:8000")
            assert began_ms <= found.since_ms <= now_ms()
        assert dlog.leader_of("log", uri=cluster.uri) is None
        with pytest.raises(dlog.InvalidName):
            dlog.leader_of("")
