"""The table of logs, and the page of one. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dlog.console.chart import Line, Spark, segment_line, spark
from dlog.console.cluster_state import LogSeen, Takeover
from dlog.console.wording import (
    NOT_ENCRYPTED,
    UNKNOWN,
    count,
    moment,
    seconds,
    setting,
    short,
    size,
)
from dlog.manifest import Manifest, Segment
from dlog.names import is_own
from dlog.protocol.record_trace import written_by
from dlog.protocol.replica_record import ReplicaRecord
from dlog.settings import settings_facts
from ledger.ids import LedgerId
from ledger.ledger_owner import STAMP_LOG
from ledger.metadata import LedgerMetadata
from ledger.values import counted

PAGE_LOGS: Final = 50
SEGMENTS_SHOWN: Final = 30
"""Of one log, with their ensembles: the newest."""
SEARCH_MAX: Final = 255
"""Characters of what is searched for."""


@dataclass(frozen=True, slots=True)
class Found:
    """Names of one page, and where it stands among all that match."""

    names: Sequence[str]
    matching: int
    begin: int
    search: str

    @property
    def end(self) -> int:
        return self.begin + len(self.names)

    @property
    def before(self) -> int | None:
        return max(0, self.begin - PAGE_LOGS) if self.begin else None

    @property
    def after(self) -> int | None:
        return self.end if self.end < self.matching else None


def find(names: Sequence[str], search: str, begin: int) -> Found:
    """Return a page of those of *names*, which are sorted, that have *search* in them. Logs of
    dlog's own are left out, unless *search* begins as their names do."""
    wanted = search.strip().lower()[:SEARCH_MAX]
    own = is_own(wanted)
    matching = [name for name in names if wanted in name.lower() and (own or not is_own(name))]
    begin = max(0, min(begin, max(0, len(matching) - 1)))
    return Found(matching[begin : begin + PAGE_LOGS], len(matching), begin, search.strip())


@dataclass(frozen=True, slots=True)
class LogRow:
    log: str
    records: str
    rate: str
    spark: Spark
    bytes: str
    segments: str
    leader: str
    lag: str
    trouble: str


def row(log: str, seen: LogSeen | None) -> LogRow:
    look = seen.look if seen is not None else None
    manifest = look.manifest if look is not None else None
    if seen is None or look is None or manifest is None:
        trouble = look.trouble if look is not None else ""
        unknown = (UNKNOWN, UNKNOWN, Spark(), UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
        return LogRow(log, *unknown, trouble)
    rate = seen.rate.last
    return LogRow(
        log=log,
        records=short(look.records),
        rate=UNKNOWN if rate is None else _per_s(rate),
        spark=spark(seen.rate.points, _per_s),
        bytes=size(look.bytes),
        segments=str(manifest.segment_count),
        leader="sealed" if manifest.sealed else look.leader or UNKNOWN,
        lag=short(look.worst_lag) if look.consumers else "",
        trouble=look.trouble,
    )


@dataclass(frozen=True, slots=True)
class SegmentRow:
    number: int
    ledger: int
    state: str
    first: str
    records: str
    bytes: str
    begun: str
    bookies: str


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    name: str
    position: str
    lag: str
    spark: Spark
    owner: str
    kind: str
    updated: str


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    name: str
    role: str
    address: str
    applied: str
    lag: str
    version: str
    since: str
    snapshot: str
    """Offset of the newest one that it knows."""
    store: str
    """Where its snapshots are."""
    state: str
    """The snapshot under way, or the error that stopped it."""


@dataclass(frozen=True, slots=True)
class TakeoverRow:
    at: str
    what: str


@dataclass(frozen=True, slots=True)
class LogPage:
    log: str
    known: bool
    trouble: str
    facts: Sequence[tuple[str, str]]
    rate: str
    spark: Spark
    line: Line
    segments: Sequence[SegmentRow]
    segments_left_out: int
    consumers: Sequence[ConsumerRow]
    replicas: Sequence[ReplicaRow]
    takeovers: Sequence[TakeoverRow]
    settings: Sequence[tuple[str, str]]
    sealed: bool


def ledgers_shown(seen: LogSeen) -> Sequence[LedgerId]:
    """Return the ledgers whose metadata the page of the log wants."""
    manifest = seen.look.manifest
    if manifest is None:
        return []
    shown = manifest.segments[-SEGMENTS_SHOWN:]
    return [segment.ledger_id for segment in shown if segment.location.on_bookies]


def log_page(
    log: str, seen: LogSeen, metadata: Mapping[LedgerId, LedgerMetadata | str], now_ms: int
) -> LogPage:
    look, manifest = seen.look, seen.look.manifest
    if manifest is None:
        nothing = Line((), None, 0)
        empty: Sequence[SegmentRow] = ()
        return LogPage(
            log, False, look.trouble, (), "", Spark(), nothing, empty, 0, (), (), (), (), False
        )
    end = manifest.sealed_end if look.next_offset is None else look.next_offset
    leads = f" for {seconds((now_ms - look.leads_since_ms) / 1000)}" if look.leads_since_ms else ""
    shown = manifest.segments[-SEGMENTS_SHOWN:]
    rate = seen.rate.last
    return LogPage(
        log=log,
        known=True,
        trouble=look.trouble,
        facts=(
            ("records", count(look.records)),
            ("first offset", count(look.first_offset)),
            ("end", count(look.next_offset)),
            ("size", size(look.bytes)),
            ("segments", str(manifest.segment_count)),
            ("leader", f"{look.leader}{leads}" if look.leader else "nobody stands for election"),
            ("epoch", str(manifest.epoch)),
            ("taken over last by", manifest.owner or UNKNOWN),
        ),
        rate=UNKNOWN if rate is None else f"{short(rate)} records/s",
        spark=spark(seen.rate.points, _per_s),
        line=segment_line(manifest.segments, trim_offset=manifest.trim_offset, next_offset=end),
        segments=[
            SegmentRow(
                each.number,
                each.ledger_id,
                "open" if each.sealed is None else "sealed",
                count(each.first_offset),
                count(each.sealed.records) if each.sealed is not None else UNKNOWN,
                size(each.sealed.bytes) if each.sealed is not None else UNKNOWN,
                moment(each.created_ms),
                ensemble(metadata.get(each.ledger_id))
                if each.location.on_bookies
                else f"object storage: {each.location}",
            )
            for each in reversed(shown)
        ],
        segments_left_out=manifest.segment_count - len(shown),
        consumers=[
            ConsumerRow(
                name,
                count(state.position),
                count(look.lag(state)),
                spark(seen.lags[name].points if name in seen.lags else (), short),
                state.owner,
                "exclusive" if state.exclusive else "shared",
                moment(state.updated_ms),
            )
            for name, state in look.consumers
        ],
        replicas=[_replica_row(each, look.next_offset) for each in look.replicas],
        takeovers=takeovers(manifest, shown, metadata, seen.takeovers),
        settings=[
            (name, setting(name, value) or NOT_ENCRYPTED)
            for name, value in settings_facts(manifest.settings).items()
        ],
        sealed=manifest.sealed,
    )


def _replica_row(record: ReplicaRecord, end: int | None) -> ReplicaRow:
    state = record.error
    if record.phase is not None and not state:
        of = "" if record.total_bytes is None else f" of {size(record.total_bytes)}"
        state = f"{record.phase} a snapshot: {size(record.done_bytes)}{of}"
    return ReplicaRow(
        name=record.candidate,
        role=record.role,
        address=record.address or UNKNOWN,
        applied=count(record.applied),
        lag=count(None if end is None else max(0, end - record.applied)),
        version=str(record.version),
        since=moment(record.since_ms),
        snapshot=count(record.newest_snapshot) if record.newest_snapshot else "none",
        store=record.snapshots or "none",
        state=state,
    )


def _per_s(records: float) -> str:
    return f"{short(records)}/s"


def takeovers(
    manifest: Manifest,
    segments: Sequence[Segment],
    metadata: Mapping[LedgerId, LedgerMetadata | str],
    seen: Iterable[Takeover],
) -> Sequence[TakeoverRow]:
    """Return who took the log over, the newest first: as the ledgers of *segments* say, which are
    the newest, and as was *seen*. A writer's epoch is the number of its first segment."""
    found = {each.epoch: (each.at_ms, each.before, each.owner) for each in seen}
    before: int | None = None
    for each in segments:
        known = metadata.get(each.ledger_id)
        custom = known.custom if isinstance(known, LedgerMetadata) else {}
        by = written_by(manifest, each, custom)
        if before is not None and by.epoch == each.number:
            found[each.number] = (each.created_ms, before, by.owner)
        before = by.epoch
    return [
        TakeoverRow(moment(at_ms), f"epoch {was} → {epoch}, by {owner or UNKNOWN}")
        for epoch, (at_ms, was, owner) in sorted(found.items(), reverse=True)
    ]


def ensemble(metadata: LedgerMetadata | str | None) -> str:
    """Return who holds a ledger, as its last fragment says."""
    if metadata is None:
        return UNKNOWN
    if isinstance(metadata, str):
        return metadata
    changes = len(metadata.fragments) - 1
    more = f" (changed {changes}×)" if changes else ""
    return ", ".join(metadata.fragments[-1].bookies) + more


@dataclass(frozen=True, slots=True)
class LedgerRow:
    ledger: int
    state: str
    entries: str
    bytes: str
    quorum: str
    bookies: str
    log: str


@dataclass(frozen=True, slots=True)
class LedgerList:
    rows: Sequence[LedgerRow]
    listed: bool
    """Whether the list was made yet."""
    total: int
    first: int
    """Place of the first row among all."""
    before: int | None
    """Ledger that the page before this one begins with."""
    after: int | None


def page_of_ids(ids: Sequence[int], begin: int) -> tuple[Sequence[int], int]:
    """Return those ids, of all which ascend, that a page from ledger *begin* on shows, and the
    place of the first."""
    at = bisect_left(ids, begin)
    return ids[at : at + PAGE_LOGS], at


def ledger_list(
    ids: Sequence[int],
    begin: int,
    metadata: Mapping[LedgerId, LedgerMetadata | str],
    *,
    listed: bool,
) -> LedgerList:
    shown, at = page_of_ids(ids, begin)
    after = at + len(shown)
    return LedgerList(
        rows=[ledger_row(each, metadata.get(LedgerId(each))) for each in shown],
        listed=listed,
        total=len(ids),
        first=at,
        before=ids[max(0, at - PAGE_LOGS)] if at > 0 else None,
        after=ids[after] if after < len(ids) else None,
    )


def ledger_row(ledger: int, metadata: LedgerMetadata | str | None) -> LedgerRow:
    if metadata is None or isinstance(metadata, str):
        return LedgerRow(ledger, metadata or UNKNOWN, *(UNKNOWN,) * 3, "", "")
    quorum = metadata.quorum
    last = metadata.last_entry
    return LedgerRow(
        ledger,
        metadata.state.name.lower().replace("_", " "),
        UNKNOWN if last is None else count(last + 1),
        size(metadata.length),
        f"{quorum.ensemble}/{quorum.write}/{quorum.ack}",
        ensemble(metadata),
        metadata.custom.get(STAMP_LOG, b"").decode("utf-8", "replace"),
    )


@dataclass(frozen=True, slots=True)
class LedgerPage:
    ledger: int
    facts: Sequence[tuple[str, str]]
    fragments: Sequence[tuple[str, str, Sequence[str]]]
    log: str


def ledger_page(ledger: int, metadata: LedgerMetadata) -> LedgerPage:
    found = ledger_row(ledger, metadata)
    quorum = metadata.quorum
    facts = [
        ("state", found.state),
        ("last entry", "open" if metadata.last_entry is None else count(metadata.last_entry)),
        ("bytes", "open" if metadata.length is None else size(metadata.length)),
        (
            "quorum",
            f"{counted(quorum.ensemble, 'bookie')}, {counted(quorum.write, 'copy')}, "
            f"{quorum.ack} to acknowledge",
        ),
        ("digest", metadata.digest.name),
        ("created", moment(metadata.created_ms)),
        *(
            (name, metadata.custom[name].decode("utf-8", "replace"))
            for name in sorted(metadata.custom)
        ),
    ]
    fragments = [
        (
            count(each.first_entry),
            "…" if (end := metadata.fragment_end(each)) is None else count(end),
            list(each.bookies),
        )
        for each in metadata.fragments
    ]
    return LedgerPage(ledger, facts, fragments, found.log)
