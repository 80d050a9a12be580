"""What OpenTelemetry is told by programs that trace, and that others do not load it."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dlog import spans
from dlog.aio import Log
from dlog.aio.namespace_connection import connect
from dlog.errors import EpochChanged
from dlog.testing import AsyncCluster
from tests.waiting import TEST_S


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A provider of this test's own: the one of a process can be set only once."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def found(told: InMemorySpanExporter, name: str) -> list[dict[str, Any]]:
    return [dict(each.attributes or {}) for each in told.get_finished_spans() if each.name == name]


async def test_an_append_says_where_it_lies_and_a_read_what_it_read(
    told: InMemorySpanExporter,
) -> None:
    async with AsyncCluster() as cluster:
        async with await Log.open("a", uri=cluster.uri) as log:
            ids = await log.append_many([b"1", b"2", b"3"])
            epoch = log.epoch
        [appended] = found(told, "dlog.append")
        [opened] = found(told, "dlog.open")
        [taken] = found(told, "dlog.takeover")
        assert opened == {"dlog.log": "a", "dlog.epoch": epoch}
        dlsn = ids[0].dlsn
        assert (taken["dlog.segment"], taken["dlog.why"]) == (dlsn.segment, "open")
        assert appended["dlog.ledger"] == taken["dlog.ledger"]
        assert (appended["dlog.entry"], appended["dlog.records"]) == (dlsn.entry, 3)
        assert appended["dlog.bytes"] > 3
        async with await Log.tail("a", uri=cluster.uri, follow=False) as reader:
            assert len(await reader.read_batch()) == 3
        [read] = found(told, "dlog.read")
        assert read == {
            "dlog.log": "a",
            "dlog.ledger": taken["dlog.ledger"],
            "dlog.first_entry": 0,
            "dlog.entries": 1,
        }


async def test_a_takeover_is_part_of_the_applications_trace_and_a_batch_is_a_trace_of_its_own(
    told: InMemorySpanExporter,
) -> None:
    async with AsyncCluster() as cluster:
        with trace.get_tracer("application").start_as_current_span("request"):
            async with await Log.open("a", uri=cluster.uri) as log:
                await log.append(b"1")
    by_name = {each.name: each for each in told.get_finished_spans()}
    request, opened = by_name["request"], by_name["dlog.open"]
    assert opened.parent == request.context
    assert by_name["dlog.takeover"].parent == opened.context
    assert by_name["dlog.append"].parent is None


async def test_what_fails_is_an_error_of_its_span(told: InMemorySpanExporter) -> None:
    async with AsyncCluster() as cluster:
        client = await connect(cluster.uri)
        with pytest.raises(EpochChanged):
            await Log.open("a", client=client, expected_epoch=7)
        await client.close()
    failed = [each for each in told.get_finished_spans() if each.name == "dlog.takeover"]
    assert [each.status.status_code for each in failed] == [StatusCode.ERROR]


async def test_a_batch_that_fails_is_an_error_of_its_span(told: InMemorySpanExporter) -> None:
    async with AsyncCluster() as cluster:
        one = await Log.open("a", uri=cluster.uri, reopen_timeout_s=0.0)
        async with await Log.open("a", uri=cluster.uri) as _:
            lost = one.append_async(b"x")
            error = await lost_with(lost)
            await one.abandon()
    failed = [each for each in told.get_finished_spans() if each.name == "dlog.append"]
    assert error is not None
    assert [each.status.status_code for each in failed] == [StatusCode.ERROR]


async def test_tracing_that_raises_changes_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.name == "dlog.append":
                raise RuntimeError("of the exporter")

    provider = TracerProvider()
    provider.add_span_processor(Broken())
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: errors.append(context["exception"])
    )
    async with AsyncCluster() as cluster, await Log.open("a", uri=cluster.uri) as log:
        assert [(await log.append(b"x")).offset for _ in range(3)] == [0, 1, 2]
    assert [str(error) for error in errors] == ["of the exporter"] * 3


async def lost_with(future: Any) -> BaseException | None:
    try:
        await future
    except Exception as error:  # noqa: BLE001 - whichever
        return error
    return None


_PROGRAM = """
import sys
from dlog.testing import cluster
import dlog
with cluster() as made:
    with dlog.Log.open("a", uri=made.uri) as log:
        log.append(b"1")
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


@pytest.mark.integration
def test_a_program_that_does_not_trace_loads_nothing_of_opentelemetry() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=TEST_S)


def test_half_loaded_modules_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(trace, "get_tracer")
    assert spans.begin("dlog.append") is None
