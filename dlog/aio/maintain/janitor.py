"""The janitor: looks after the logs of a namespace that nobody else looks after.

In each pass, one log after the other:

    1. a deletion that has begun is finished
    2. retention is applied, so logs without a writer shrink too
    3. ledgers that a truncation listed for deletion are deleted

and then ledgers that can never become part of a log are deleted (`dlog.protocol.orphans`), never
anything else. Several janitors may run: everything they do is safe to do twice and at the same
time. An election keeps all but one idle; it is a hint and nothing depends on it.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dlog import metrics
from dlog.aio.maintain.lifecycle import finish_drop
from dlog.aio.maintain.pass_runner import PassRunner
from dlog.aio.maintain.survey import Survey, Trouble, Unlisted, is_leaderless, survey, unlisted
from dlog.aio.maintain.trim import apply_retention
from dlog.aio.port import Ledgers
from dlog.aio.store import ManifestNode, delete_listed, read_consumers
from dlog.manifest import Manifest
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.edits import end_copies
from dlog.protocol.orphans import CopyFor, OrphanKind
from ledger.errors import LogError
from ledger.ids import LedgerId
from ledger.log_events import get_logger
from ledger.log_events import now_ms as wall_clock_ms
from ledger.values import count_of, duration_s

ELECTION: Final = ".janitor"
"""No log can have this name."""
COPY_MS_MAX: Final = 86_400_000
"""How long the local copy of one segment may take."""
FOREIGN_MAX: Final = 100_000
"""Ledgers that are not of logs, remembered so that they are not read in each pass."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JanitorConfig:
    interval_s: float = 60.0
    """Pause between two passes."""
    orphans_max: int = 1000
    """How many orphans one pass deletes; the next one goes on."""
    elect: bool = True
    """Stay idle while another janitor of the namespace works."""

    def __post_init__(self) -> None:
        interval_s = duration_s(self.interval_s, "interval_s", least=0.001)
        object.__setattr__(self, "interval_s", interval_s)
        count_of(self.orphans_max, "orphans_max")


@dataclass(frozen=True, slots=True)
class JanitorPass:
    """What one pass did."""

    logs: int
    """How many were looked at."""
    records_trimmed: int
    """By retention."""
    ledgers_deleted: int
    """Of segments that were trimmed, now or by a truncation that did not finish."""
    logs_deleted: tuple[str, ...]
    """Whose deletion had begun before."""
    orphans: tuple[Unlisted, ...]
    """They were deleted."""
    troubles: tuple[Trouble, ...]
    """What could not be done; the next pass tries again."""


class Janitor(PassRunner[JanitorPass]):
    """Looks after all logs; a pass raises what listing logs and ledgers raises."""

    def __init__(
        self,
        ledgers: Ledgers,
        config: JanitorConfig | None = None,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._config = config or JanitorConfig()
        super().__init__(ledgers, ELECTION, self._config.interval_s, elect=self._config.elect)
        self._now_ms = now_ms
        self._foreign: set[int] = set()
        self.leaderless: int | None = None
        self.consumer_lags: Mapping[str, int] | None = None
        """What the last pass saw of all logs, for metrics; None while another janitor works."""
        metrics.OVERSEERS.add(self)

    async def _pass(self) -> JanitorPass:
        began = time.perf_counter()
        done = await self._look_after_all()
        metrics.JANITOR_PASS_S.observe(time.perf_counter() - began)
        metrics.JANITOR_TRIMMED_RECORDS.add(by=done.records_trimmed)
        metrics.JANITOR_DELETED_LEDGERS.add(by=done.ledgers_deleted)
        metrics.JANITOR_DELETED_ORPHANS.add(by=len(done.orphans))
        metrics.JANITOR_TROUBLES.add(by=len(done.troubles))
        return done

    def _pass_failed(self, error: LogError) -> None:
        metrics.JANITOR_FAILURES.add()
        say = _log.warning if error.retryable else _log.error
        say("janitor_pass_failed", error=str(error))

    def _stood_down(self) -> None:
        self.leaderless = self.consumer_lags = None

    async def _look_after_all(self) -> JanitorPass:
        logs = trimmed = deleted = 0
        dropped: list[str] = []
        leaderless, lags = 0, dict[str, int]()

        async def look_after(_: Survey, node: ManifestNode, manifest: Manifest) -> None:
            nonlocal logs, trimmed, deleted, leaderless
            logs += 1
            if manifest.dropped:
                await finish_drop(self._ledgers, node)
                dropped.append(node.log)
                return
            kept = await apply_retention(self._ledgers, node, manifest, now_ms=self._now_ms())
            trimmed += kept.trim_offset - manifest.trim_offset
            await delete_listed(self._ledgers, node, kept)
            deleted += len(kept.deleting)
            store = self._ledgers.store
            leaderless += await is_leaderless(store, node.log, kept)
            lag = slowest_lag(await read_consumers(store, node.log, kept), kept)
            if lag is not None:
                lags[node.log] = lag

        found = await survey(self._ledgers, look_after)
        self.leaderless, self.consumer_lags = leaderless, lags
        orphans: list[Unlisted] = []
        async for each in unlisted(self._ledgers, found, skip=self._foreign):
            if len(orphans) >= self._config.orphans_max:
                break
            if each.is_orphan and await self._delete(each, found.troubles):
                orphans.append(each)
            elif isinstance(each.stamp, CopyFor) and each.standing is OrphanKind.PENDING:
                await self._end_copies(each, each.stamp, found.troubles)
        if len(self._foreign) > FOREIGN_MAX:
            self._foreign.clear()
        for trouble in found.troubles:
            _log.warning("janitor_trouble", what=trouble.what, error=str(trouble.error))
        done = JanitorPass(
            logs, trimmed, deleted, tuple(dropped), tuple(orphans), tuple(found.troubles)
        )
        if trimmed or deleted or dropped or orphans:
            _log.info(
                "janitor_pass",
                logs=logs,
                records_trimmed=trimmed,
                ledgers_deleted=deleted,
                logs_deleted=len(dropped),
                orphans_deleted=len(orphans),
            )
        return done

    async def _end_copies(self, copy: Unlisted, stamp: CopyFor, troubles: list[Trouble]) -> None:
        """End the round of a local copy that nobody has listed for a day: whoever makes it is dead,
        most probably, and has to begin again else. The next pass deletes it."""
        if self._now_ms() - copy.created_ms < COPY_MS_MAX:
            return
        node = ManifestNode(self._ledgers.store, stamp.log)
        node.follow(stamp.incarnation)
        edit = end_copies(stamp.log, stamp.copy_round, incarnation=stamp.incarnation)
        try:
            await node.edit(edit)
        except LogError as error:
            troubles.append(Trouble(f"ledger {copy.ledger_id}", error))

    async def _delete(self, orphan: Unlisted, troubles: list[Trouble]) -> bool:
        try:
            await remove_orphan(self._ledgers, orphan)
        except LogError as error:
            troubles.append(Trouble(f"ledger {orphan.ledger_id}", error))
            return False
        return True


def slowest_lag(consumers: Iterable[tuple[str, ConsumerState]], manifest: Manifest) -> int | None:
    """Return how many records of sealed segments the slowest of *consumers* has not processed; what
    was trimmed does not count. None if there are none."""
    end, begin = manifest.sealed_end, manifest.trim_offset
    lags = [max(0, end - max(state.position, begin)) for _, state in consumers]
    return max(lags, default=None)


async def remove_orphan(ledgers: Ledgers, orphan: Unlisted) -> LedgerId:
    """Delete a ledger that can never become part of a log; return its id."""
    assert orphan.is_orphan, "only a ledger that is an orphan for certain may be deleted"
    assert orphan.standing is not None
    assert orphan.stamp is not None
    _log.info(
        "orphan_deleted",
        ledger_id=orphan.ledger_id,
        log=orphan.stamp.log,
        purpose=orphan.stamp.purpose,
        why=orphan.standing.value,
    )
    await ledgers.delete(orphan.ledger_id)
    return orphan.ledger_id
