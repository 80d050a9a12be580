"""Changes that a page offers: each asks first, and calls the same code as its command.

A confirmation sends back what was shown (an offset, settings, which life of the log), so that what
is made is what was read, though the log has gone on meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bookie.autorecovery.move_job import decommission, keep
from bookie.autorecovery.protocol.move_job import Report
from dlog.aio.admin import (
    VerifyProgress,
    delete_log,
    plan_truncation,
    seal_log,
    truncate_log,
    update_settings,
    verify_log,
)
from dlog.aio.store import ManifestNode, read_consumers
from dlog.config import load
from dlog.console.cluster_state import LogLook
from dlog.console.event_stream import TakesTooLong, position_of
from dlog.console.poller import Gatherer
from dlog.console.views.changes import (
    SET,
    Asked,
    Consumers,
    changed_settings,
    collection,
    compaction,
    decommissioning,
    deletion,
    keeping,
    sealing,
    settings_change,
    switching,
    truncation,
    verification,
)
from dlog.console.wording import count, seconds, size
from dlog.console.works import NotBegun, Ordered, Say
from dlog.encryption.names import NAME_ALLOWED, is_key_name
from dlog.errors import InvalidPosition, InvalidSettings
from dlog.health.survey import NoOrders, operator_of, taking_orders
from dlog.manifest import Manifest
from dlog.names import check_name, is_own
from dlog.protocol.edits import check_incarnation, check_living
from ledger.ids import BookieId
from ledger.log_events import now_ms
from ledger.values import counted
from ledger.wire import bookie_pb2 as pb

if TYPE_CHECKING:
    from ledger.transport.operator import BookieOperator

LOOK_S: Final = 2.0
"""The page waits so long for a look at the log; then it shows the one before."""
ASK_S: Final = 10.0
"""And so long for what the change would do."""

Given = Mapping[str, str]
"""The fields of a form."""


@dataclass(frozen=True, slots=True)
class Kind:
    subject: str
    """The kind of its target: log or bookie."""
    words: str
    """The words of the button that leads to it."""
    ask: Callable[[Gatherer, Given], Awaitable[Asked]]
    """Say what it will do. Changes nothing."""
    order: Callable[[Gatherer, Given], Ordered]
    """Return the change that was confirmed. Raises what a form may have wrong."""
    typed: bool = False
    """The name of the target must be typed: there is no way back."""


def ordered(kind: Kind, gatherer: Gatherer, given: Given) -> Ordered:
    """Return the change that was confirmed. Raises `NotBegun`, and what a form may have wrong."""
    found = kind.order(gatherer, given)
    if kind.typed and given.get("typed") != found.subject:
        raise NotBegun(f"type the name of the {kind.subject}, {found.subject}, to confirm it")
    return found


async def asked(kind: Kind, gatherer: Gatherer, given: Given) -> Asked:
    """Return what the change would do. Raises what looking raises, and `TakesTooLong`."""
    try:
        async with asyncio.timeout(ASK_S):
            return await kind.ask(gatherer, given)
    except TimeoutError:
        raise TakesTooLong("the preview of the change") from None


# Logs.


def _log_of(given: Given) -> str:
    log = check_name(given.get("log", ""))
    if is_own(log):
        raise NotBegun(f"{log!r} is a log of dlog's own: change it from the command line")
    return log


async def _living(gatherer: Gatherer, log: str) -> Manifest:
    manifest, _ = await ManifestNode(gatherer.client.store, log).read()
    check_living(manifest, log)
    return manifest


async def _looked(gatherer: Gatherer, given: Given) -> tuple[str, Manifest, LogLook, Consumers]:
    """Return the log's name, its manifest now, a look at it, and all of its consumers."""
    log = _log_of(given)
    manifest = await _living(gatherer, log)
    seen = await gatherer.look_now(log, wait_s=LOOK_S)
    consumers = await read_consumers(gatherer.client.store, log, manifest)
    return log, manifest, seen.look, consumers


def _life_shown(given: Given) -> str:
    """Return the incarnation of the log that was shown: that one is changed, and no other that has
    its name since, in whatever moment it was made."""
    if not given.get("incarnation"):
        raise NotBegun(
            "the form does not name the incarnation of the log: start from the page of the log"
        )
    return given["incarnation"]


async def _ask_truncate(gatherer: Gatherer, given: Given) -> Asked:
    log, _, look, consumers = await _looked(gatherer, given)
    text = given.get("before", "").strip()[:100]
    if not text:
        return truncation(log, look, text, None)
    before = position_of(text, "before")
    if isinstance(before, str):
        raise InvalidPosition(log, text, "use an offset, a DLSN, txid:NUMBER or time:TIME")
    plan = await plan_truncation(log, before=before, client=gatherer.client)
    return truncation(log, look, text, (plan, consumers))


def _order_truncate(gatherer: Gatherer, given: Given) -> Ordered:
    log, life, text = _log_of(given), _life_shown(given), given.get("before", "")
    before = position_of(text, "before")
    if not isinstance(before, int):
        raise InvalidPosition(log, text, "a confirmed truncation names an offset")

    async def make(_: Say) -> str:
        first = await truncate_log(log, before=before, incarnation=life, client=gatherer.client)
        return f"the first offset is {count(first)} now"

    return _of_log("log truncate", log, make, before=text)


async def _ask_seal(gatherer: Gatherer, given: Given) -> Asked:
    log, manifest, look, consumers = await _looked(gatherer, given)
    return sealing(log, look, manifest, consumers)


def _order_seal(gatherer: Gatherer, given: Given) -> Ordered:
    log, life = _log_of(given), _life_shown(given)

    async def make(_: Say) -> str:
        end = await seal_log(log, incarnation=life, client=gatherer.client)
        return f"it is sealed: the offset after its end is {count(end)}"

    return _of_log("log seal", log, make)


async def _ask_delete(gatherer: Gatherer, given: Given) -> Asked:
    log, manifest, look, consumers = await _looked(gatherer, given)
    return deletion(log, look, manifest, consumers)


def _order_delete(gatherer: Gatherer, given: Given) -> Ordered:
    log, life = _log_of(given), _life_shown(given)

    async def make(_: Say) -> str:
        await delete_log(log, incarnation=life, client=gatherer.client)
        return "it was deleted"

    return _of_log("log delete", log, make)


async def _ask_settings(gatherer: Gatherer, given: Given) -> Asked:
    log = _log_of(given)
    manifest = await _living(gatherer, log)
    consumers = await read_consumers(gatherer.client.store, log, manifest)
    changes = changed_settings(given, manifest.settings)
    return settings_change(log, manifest, changes, consumers, now_ms=now_ms())


def _order_settings(gatherer: Gatherer, given: Given) -> Ordered:
    log, life = _log_of(given), _life_shown(given)
    changes = {key.removeprefix(SET): text for key, text in given.items() if key.startswith(SET)}
    key = changes.get("encrypt_with")
    if key and not is_key_name(key):  # at once: a later refusal would already be recorded
        raise InvalidSettings("encrypt_with", "...", f"the name of a key is {NAME_ALLOWED}")
    if not changes:
        raise NotBegun("no setting was changed")

    async def make(_: Say) -> str:
        await update_settings(log, changes, incarnation=life, client=gatherer.client)
        return f"changed: {', '.join(changes)}"

    pairs = [f"{name}={text}" for name, text in changes.items()]
    return _of_log("log settings set", log, make, pairs=pairs)


async def _ask_verify(gatherer: Gatherer, given: Given) -> Asked:
    log, manifest, look, _ = await _looked(gatherer, given)
    return verification(log, look, manifest)


def _order_verify(gatherer: Gatherer, given: Given) -> Ordered:
    log, life = _log_of(given), _life_shown(given)

    async def make(say: Say) -> str:
        manifest = await _living(gatherer, log)
        check_incarnation(manifest, log, life)
        total = manifest.sealed_bytes or 1

        def on_progress(at: VerifyProgress) -> None:
            words = f"{at.segments_done} of {counted(at.segments, 'segment')}, {size(at.bytes)}"
            say(words, min(1000, 1000 * at.bytes // max(total, at.bytes)))

        report = await verify_log(log, repair=True, on_progress=on_progress, client=gatherer.client)
        found = f"{counted(report.entries, 'entry')}, {counted(report.replicas, 'good copy')}"
        if report.healthy:
            return f"{found}: no problems found"
        wrong = len(report.faults) + len(report.problems) + report.more
        return (
            f"{found}: {counted(wrong, 'problem')}, {counted(report.marked, 'ledger')} marked for "
            "repair"
        )

    return Ordered(
        command="log verify", subject=log, arguments={"logs": [log], "repair": True}, make=make
    )


def _of_log(
    command: str, log: str, make: Callable[[Say], Awaitable[str]], **more: str | list[str]
) -> Ordered:
    return Ordered(command=command, subject=log, arguments={"log": log, **more}, make=make)


# Bookies.


def _bookie_of(gatherer: Gatherer, given: Given) -> BookieId:
    name = given.get("bookie", "")
    if not any(each.bookie == name for each in gatherer.cluster.known):
        raise NoOrders(name, f"no bookie {name[:200]!r} is known; see 'dlog bookie list'")
    return BookieId(name)


@asynccontextmanager
async def _operator(gatherer: Gatherer, bookie: BookieId) -> "AsyncIterator[BookieOperator]":
    client = gatherer.client
    found = taking_orders(client.bookies, bookie, security=client.security)
    async with operator_of(found, timeout_s=load().timeout_s, security=client.security) as operator:
        yield operator


async def _ask_gc(gatherer: Gatherer, given: Given) -> Asked:
    return collection(_bookie_of(gatherer, given), gatherer.cluster)


def _order_gc(gatherer: Gatherer, given: Given) -> Ordered:
    bookie = _bookie_of(gatherer, given)

    async def make(say: Say) -> str:
        say("collecting garbage", None)
        async with _operator(gatherer, bookie) as operator:
            return _ran(await operator.collect())

    return _of_bookies("bookie gc", bookie, make)


async def _ask_compact(gatherer: Gatherer, given: Given) -> Asked:
    return compaction(_bookie_of(gatherer, given), gatherer.cluster)


def _order_compact(gatherer: Gatherer, given: Given) -> Ordered:
    bookie = _bookie_of(gatherer, given)

    async def make(say: Say) -> str:
        say("compacting", None)
        async with _operator(gatherer, bookie) as operator:
            return _ran(await operator.compact(major=True))

    return _of_bookies("bookie compact", bookie, make, major=True)


def _switch_of(given: Given) -> bool:
    """Return whether it is to be read-only."""
    if given.get("switch") not in ("on", "off"):
        raise NotBegun("switch is on or off")
    return given["switch"] == "on"


async def _ask_readonly(gatherer: Gatherer, given: Given) -> Asked:
    bookie = _bookie_of(gatherer, given)
    return switching(bookie, gatherer.cluster, read_only=_switch_of(given))


def _order_readonly(gatherer: Gatherer, given: Given) -> Ordered:
    bookie, read_only = _bookie_of(gatherer, given), _switch_of(given)

    async def make(_: Say) -> str:
        async with _operator(gatherer, bookie) as operator:
            reply = await operator.set_read_only(read_only=read_only)
        why = f": {'; '.join(reply.reasons)}" if reply.reasons else ""
        return f"it is {'read-only' if reply.read_only else 'writable'}{why}"

    return _of_bookies("bookie readonly", bookie, make, switch=given["switch"])


async def _ask_decommission(gatherer: Gatherer, given: Given) -> Asked:
    return decommissioning(_bookie_of(gatherer, given), gatherer.cluster)


def _order_decommission(gatherer: Gatherer, given: Given) -> Ordered:
    bookie = _bookie_of(gatherer, given)

    async def make(say: Say) -> str:
        most = 1

        def on_report(report: Report) -> None:
            nonlocal most
            most = max(most, report.bytes_left)
            words = f"{counted(report.ledgers_left, 'ledger')} left, {size(report.bytes_left)}"
            if report.hopeless:
                words += f"; no bookie has some entries of {len(report.hopeless)} of them"
            trouble = f"; {report.trouble}" if report.trouble else ""
            say(words + trouble, 1000 * (most - report.bytes_left) // most)

        done = await decommission(gatherer.client, bookie, on_report=on_report)
        return f"{done.outcome.value}: {done.why}" if done.why else done.outcome.value

    arguments = {"bookie": str(bookie)}
    return Ordered(command="bookie decommission", subject=bookie, arguments=arguments, make=make)


async def _ask_keep(gatherer: Gatherer, given: Given) -> Asked:
    return keeping(_bookie_of(gatherer, given), gatherer.cluster)


def _order_keep(gatherer: Gatherer, given: Given) -> Ordered:
    bookie = _bookie_of(gatherer, given)

    async def make(_: Say) -> str:
        await keep(gatherer.client, bookie)
        return "it stays; make it writable to accept entries again"

    return Ordered(
        command="bookie decommission",
        subject=bookie,
        arguments={"bookie": str(bookie), "cancel": True},
        make=make,
    )


def _of_bookies(
    command: str, bookie: BookieId, make: Callable[[Say], Awaitable[str]], **more: str | bool
) -> Ordered:
    return Ordered(
        command=command, subject=bookie, arguments={"bookies": [str(bookie)], **more}, make=make
    )


def _ran(done: pb.CollectorRun) -> str:
    words = [
        f"{counted(done.ledgers, 'ledger')} and {counted(done.logs, 'entry log')} removed, "
        f"{size(done.bytes_freed)} freed, {size(done.bytes_moved)} moved in {seconds(done.took_s)}"
    ]
    words += [f"{alarm.kind}: {alarm.reason}" for alarm in done.alarms]
    if done.failure:
        words.append(f"it failed: {done.failure}")
    if done.suspended:
        words.append(f"logs were left as they are: {done.suspended}")
    words += [f"damaged: {damage}" for damage in done.damages]
    return "; ".join(words)


KINDS: Final[Mapping[str, Kind]] = {
    "log-truncate": Kind("log", "Truncate", _ask_truncate, _order_truncate),
    "log-settings": Kind("log", "Settings", _ask_settings, _order_settings),
    "log-verify": Kind("log", "Verify", _ask_verify, _order_verify),
    "log-seal": Kind("log", "Seal", _ask_seal, _order_seal, typed=True),
    "log-delete": Kind("log", "Delete", _ask_delete, _order_delete, typed=True),
    "bookie-gc": Kind("bookie", "Collect garbage", _ask_gc, _order_gc),
    "bookie-compact": Kind("bookie", "Compact", _ask_compact, _order_compact),
    "bookie-readonly": Kind("bookie", "Read-only", _ask_readonly, _order_readonly),
    "bookie-decommission": Kind(
        "bookie", "Decommission", _ask_decommission, _order_decommission, typed=True
    ),
    "bookie-keep": Kind("bookie", "Keep it", _ask_keep, _order_keep),
}
