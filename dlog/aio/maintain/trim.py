"""Truncation and retention: finds the trim point, moves it, deletes what fell below it.

Each works beside a living writer and disturbs it in nothing: only the manifest changes, by
compare-and-swap, and a writer's next change begins from there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from dlog.aio.port import Ledgers
from dlog.aio.read.places import start_offset
from dlog.aio.read.segments import opened_segment
from dlog.aio.read.tails import RACES_MAX, acknowledged_end, tail_of
from dlog.aio.store import ManifestNode, delete_listed, read_consumers
from dlog.errors import InvalidPosition, NoSuchLog, Trimmed
from dlog.manifest import Manifest
from dlog.position import DLSN, Timestamp, Txid
from dlog.protocol.edits import check_incarnation, retain, trim
from dlog.protocol.retention import TrimPlan, offset_keeping_bytes, plan_trim
from dlog.starts import parse_start
from ledger.errors import InvalidValue, NoSuchLedger
from ledger.ids import NO_ENTRY
from ledger.log_events import now_ms
from ledger.values import Duration, Size, duration_or_none, size_bytes

Before = int | DLSN | Timestamp | Txid
"""The first record to keep: its offset, or where it is, or what it reaches first."""


@dataclass(frozen=True, slots=True)
class Keep:
    """What a truncation keeps: exactly one of the three.

    *before*: everything from there on. *bytes*: at least so many payload bytes, in whole
    segments. *age_s*: everything from the first record on whose timestamp is not older.
    Raises ValueError."""

    before: Before | None = None
    bytes: int | None = None
    age_s: float | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.before, self.bytes, self.age_s)) != 1:
            raise ValueError("say what to keep by one of before, keep_bytes and keep_age_s")

    @classmethod
    def of(
        cls,
        log: str,
        before: Before | None,
        keep_bytes: Size | None,
        keep_age_s: Duration | None,
    ) -> Self:
        """Raises `InvalidPosition` as well."""
        if before is not None:
            before = _checked(log, before)
        size = None if keep_bytes is None else size_bytes(keep_bytes, "keep_bytes")
        return cls(before, size, duration_or_none(keep_age_s, "keep_age_s"))


def _checked(log: str, before: object) -> Before:
    try:
        found = parse_start(before, "before", now_ms)
    except InvalidValue as error:
        raise InvalidPosition(log, before, error.reason) from None
    if isinstance(found, str):
        raise InvalidPosition(log, before, "use an offset, a DLSN, txid:NUMBER or time:TIME")
    return found


async def trim_target(
    ledgers: Ledgers, node: ManifestNode, keep: Keep, *, now_ms: Callable[[], int]
) -> int:
    """Return the offset to trim to; it is committed. Raises `NoSuchLog`, `InvalidPosition`.

    Not below the present trim point: what a position names that is trimmed already is gone."""
    if keep.bytes is not None:
        return await _keeping_bytes(ledgers, node, keep.bytes)
    before = keep.before
    if keep.age_s is not None:
        before = Timestamp(now_ms() - round(keep.age_s * 1000))
    assert before is not None, "one of the three is given"
    try:
        target = await start_offset(ledgers, node, before)
    except Trimmed as error:
        return error.first_offset
    tail = await tail_of(ledgers, node.log)
    # What bookies report of the end may lag behind an acknowledgement.
    if target > tail.next_offset and target > (end := await acknowledged_end(ledgers, node)):
        raise InvalidPosition(node.log, target, f"the log ends at offset {end}")
    return target


async def plan(
    ledgers: Ledgers, node: ManifestNode, keep: Keep, *, now_ms: Callable[[], int]
) -> TrimPlan:
    """Return what `truncate` would do now. Raises as it does."""
    target = await trim_target(ledgers, node, keep, now_ms=now_ms)
    return plan_trim(node.log, await _living(node), target)


async def truncate(
    ledgers: Ledgers,
    node: ManifestNode,
    keep: Keep,
    *,
    now_ms: Callable[[], int],
    incarnation: str | None = None,
) -> Manifest:
    """Remove what *keep* does not keep; return the manifest after it.

    With *incarnation*, only of that log. Raises `NoSuchLog`, `InvalidPosition`, and what bookies
    and metadata store raise: then the trim point may have moved, and what is left of the deletion
    is done by the next one."""
    manifest = await _living(node)
    incarnation = manifest.incarnation if incarnation is None else incarnation
    check_incarnation(manifest, node.log, incarnation)
    target = await trim_target(ledgers, node, keep, now_ms=now_ms)
    manifest = await node.edit(trim(node.log, target, incarnation=incarnation))
    return await delete_listed(ledgers, node, manifest)


async def apply_retention(
    ledgers: Ledgers, node: ManifestNode, manifest: Manifest, *, now_ms: int
) -> Manifest:
    """Apply the retention settings of *manifest*, which was just read; return what is stored.

    Asks for the slowest consumer if they say so; without any there is nobody to wait for. One
    list of consumers alone trims nothing: a second one has to say the same. Ledgers that fall out
    of the log are listed for deletion, and not deleted yet."""
    processed: int | None = None
    if manifest.settings.retention_waits_for_consumers:
        processed = await _processed(ledgers, node, manifest)
    if manifest.retained_from(now_ms, processed=processed) <= manifest.trim_offset:
        return manifest
    if processed is not None:
        processed = min(processed, await _processed(ledgers, node, manifest))
    return await node.edit(retain(node.log, seen=manifest, now_ms=now_ms, processed=processed))


async def _processed(ledgers: Ledgers, node: ManifestNode, manifest: Manifest) -> int:
    """Return the position of the slowest consumer; without any, the end of what is sealed."""
    consumers = await read_consumers(ledgers.store, node.log, manifest)
    return min((state.position for _, state in consumers), default=manifest.sealed_end)


async def _keeping_bytes(ledgers: Ledgers, node: ManifestNode, bytes_min: int) -> int:
    for race in range(1, RACES_MAX + 1):
        manifest = await _living(node)
        try:
            open_bytes = await _open_bytes(ledgers, node.log, manifest)
        except NoSuchLedger:  # trimmed or deleted after the manifest was read
            if race == RACES_MAX:
                raise
            continue
        return offset_keeping_bytes(manifest, bytes_min, open_bytes=open_bytes)
    raise AssertionError("unreachable")


async def _open_bytes(ledgers: Ledgers, log: str, manifest: Manifest) -> int:
    """Return how many payload bytes are confirmed in segments that are not sealed."""
    total = 0
    for segment in manifest.segments:
        if segment.sealed is not None:
            continue
        async with opened_segment(ledgers, log, segment) as reader:
            last = await reader.read_last_add_confirmed()
            if last != NO_ENTRY:
                total += (await reader.read(last, last))[0].length
    return total


async def _living(node: ManifestNode) -> Manifest:
    manifest, _ = await node.read()
    if manifest.dropped:
        raise NoSuchLog(node.log, "it is being deleted")
    return manifest
