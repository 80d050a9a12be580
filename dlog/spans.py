"""Spans of OpenTelemetry, if the application traces: open, takeover, append of a batch, read.

Nothing is imported for it. An application that traces has imported OpenTelemetry's API itself, so
it is found among the modules that are loaded; in all other programs a span is one look into a
dictionary, for a batch, never for a record.

    dlog.open        opening a log for writing; dlog.log, dlog.epoch
    dlog.takeover    within it, or within a reopen; dlog.log, dlog.why, dlog.segment, dlog.ledger
    dlog.append      one batch, from sending to the acknowledgement of its quorum; dlog.log,
                     dlog.epoch, dlog.ledger, dlog.entry, dlog.records, dlog.bytes
    dlog.read        one read of a reader, with the wait for news; dlog.log, dlog.ledger,
                     dlog.first_entry, dlog.entries

A batch has records of many callers, so its span is no child of any of theirs: it begins a trace of
its own. What application and log have in common is the record's place: `RecordId.dlsn` names
the segment and the entry.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

__all__ = ["Span", "begin", "describe", "end", "span", "tracer"]

_NAME: Final = "dlog"
_API: Final = "opentelemetry.trace"

Value = str | int


def tracer() -> "Tracer | None":
    """Return what makes spans; None if the application has not loaded OpenTelemetry."""
    api = sys.modules.get(_API)
    if api is None:
        return None
    found: Tracer | None = getattr(api, "get_tracer", lambda _: None)(_NAME)
    return found


@contextmanager
def span(name: str, **facts: Value) -> Iterator["Span | None"]:
    """Let what is done inside be a span: a child of the one that is current, and current itself.

    An exception is noted in it. *facts* get ``dlog.`` in front, as those of `describe` do."""
    maker = tracer()
    if maker is None:
        yield None
        return
    with maker.start_as_current_span(name, attributes=_attributes(facts)) as one:
        yield one


def begin(name: str) -> "Span | None":
    """Begin a span that begins a trace, and whose end comes in another turn of the loop."""
    if _API not in sys.modules or (maker := tracer()) is None:
        return None
    one = maker.start_span(name, context=_no_parent())
    return one if one.is_recording() else None


def describe(one: "Span | None", **facts: Value) -> None:
    if one is not None:
        one.set_attributes(_attributes(facts))


def end(one: "Span", error: BaseException | None, **facts: Value) -> None:
    """End a span that was begun with `begin`."""
    describe(one, **facts)
    if error is not None:
        from opentelemetry.trace import Status, StatusCode

        one.record_exception(error)
        one.set_status(Status(StatusCode.ERROR, str(error)))
    one.end()


def _no_parent() -> "Context":
    from opentelemetry.context import Context

    return Context()


def _attributes(facts: dict[str, Value]) -> dict[str, Value]:
    return {f"dlog.{name}": value for name, value in facts.items()}
