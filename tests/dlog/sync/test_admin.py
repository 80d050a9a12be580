"""The operator's calls without asyncio, on a real cluster in this process."""

import inspect
from collections.abc import Iterator

import pytest

import dlog.aio.admin
from dlog import admin
from dlog.errors import NoSuchLog
from dlog.testing import cluster


@pytest.fixture(autouse=True)
def uri(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with cluster() as made:
        monkeypatch.setenv("DLOG_URI", made.uri)
        yield made.uri


def test_a_log_lives_its_whole_life_by_blocking_calls() -> None:
    admin.create_log("a", settings=dlog.LogSettings(roll_records=5))
    with admin.watch_logs() as watch:
        assert next(watch) == ("added", "a")
        with dlog.Log.open("a") as log:
            for index in range(10):
                log.append(b"%d" % index)
                if index == 4:
                    log.roll()
        assert admin.update_settings("a", {"retention_bytes": 10**6}).roll_records == 5
        assert admin.log_settings("a").retention_bytes == 10**6
        plan = admin.plan_truncation("a", before=6)
        assert plan.records == 6
        assert admin.truncate_log("a", before=plan.trim_offset) == 6
        admin.rename_log("a", "b")
        assert {next(watch), next(watch)} == {("removed", "a"), ("added", "b")}
        assert admin.list_logs() == ["b"]
        assert admin.verify_log("b").healthy
        assert admin.audit_namespace().healthy
        assert admin.seal_log("b") == 10
        assert [record.offset for record in dlog.Log.tail("b")] == [6, 7, 8, 9]
        assert admin.log_info("b").manifest.sealed
        assert admin.slowest_consumer("b") is None
        admin.delete_log("b")
        assert not admin.log_exists("b")
        assert next(watch) == ("removed", "b")
        with pytest.raises(NoSuchLog):
            admin.truncate_log("b", before=0)


def test_the_facade_has_every_name_of_the_async_functions() -> None:
    needless = {"log_tail"}  # for those who poll on a loop of their own
    wanted = {
        name for name in dlog.aio.admin.__all__ if inspect.isfunction(getattr(dlog.aio.admin, name))
    }
    assert wanted - needless <= set(admin.__all__)
    for name in admin.__all__:
        assert getattr(admin, name).__doc__, name
