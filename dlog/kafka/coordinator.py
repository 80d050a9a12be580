"""The groups of consumers that this gateway coordinates.

A group belongs to one of eight internal logs, by a hash of its id; the gateway that leads the log
coordinates the group. A log is taken over at the first request for one of its groups, and let go
when this gateway does not lead it any more.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from zlib import crc32

from kio.schema.errors import ErrorCode

from dlog.aio.port import Ledgers
from dlog.kafka.errors import KafkaRefusal
from dlog.kafka.group_mirror import MIRROR_S, GroupMirror
from dlog.kafka.offsets_log import OffsetsLog
from dlog.kafka.protocol.consumer_group import INITIAL_DELAY_MS
from ledger.errors import LogError
from ledger.log_events import get_logger

OFFSETS_LOGS: Final = tuple(f"_kafka/offsets-{number}" for number in range(8))
GROUP_ID_BYTES_MAX: Final = 1024
REOPEN_S: Final = 0.5
"""How long an offsets log that was lost is left alone: two gateways whose views differ for a
moment must not take it from each other all the time."""
_log = get_logger(__name__)


def offsets_log(group: str) -> str:
    """Return the log whose leader coordinates *group*."""
    return OFFSETS_LOGS[crc32(group.encode(errors="replace")) % len(OFFSETS_LOGS)]


class GroupCoordinator:
    """Of one gateway. `start` it and `close` it."""

    def __init__(
        self,
        ledgers: Ledgers,
        *,
        leads: Callable[[str], bool],
        log_of: Callable[[str, int], str | None],
        owner: str,
        initial_delay_ms: int = INITIAL_DELAY_MS,
        mirror_s: float = MIRROR_S,
    ) -> None:
        """*leads*: whether this gateway leads a log, by its present view. *log_of*: the log of a
        topic's partition, None if there is none. *owner* is shown to people."""
        self._ledgers, self._leads, self._owner = ledgers, leads, owner
        self._initial_delay_ms = initial_delay_ms
        self._mirror = GroupMirror(ledgers.store, log_of, owner=owner, every_s=mirror_s)
        self._open: dict[str, OffsetsLog] = {}
        self._opening: dict[str, asyncio.Task[OffsetsLog]] = {}
        self._not_before: dict[str, float] = {}
        self._releasing: set[asyncio.Task[None]] = set()
        self._closed = False
        self.takeovers = 0
        """Offsets logs that this gateway has taken over."""
        self.rebalances = 0
        """Generations of groups that were formed here."""

    async def start(self) -> None:
        await self._mirror.start()

    @property
    def logs(self) -> Sequence[OffsetsLog]:
        """Those that are open and can be used."""
        return [log for log in self._open.values() if not log.failed.is_set()]

    async def led(self, group: str) -> OffsetsLog:
        """Return the log of *group*, taken over and replayed. Raises `KafkaRefusal`."""
        if len(group.encode(errors="replace")) > GROUP_ID_BYTES_MAX:
            sentence = f"an id of a group has up to {GROUP_ID_BYTES_MAX} bytes"
            raise KafkaRefusal(ErrorCode.invalid_group_id, sentence)
        return await self._led(offsets_log(group))

    async def all_led(self) -> Sequence[OffsetsLog]:
        """Return the logs of all groups that this gateway coordinates. Raises `KafkaRefusal`."""
        led = [name for name in OFFSETS_LOGS if self._leads(name)]
        return await asyncio.gather(*(self._led(name) for name in led))

    async def _led(self, name: str) -> OffsetsLog:
        if self._closed or not self._leads(name):
            self._release(name)
            raise KafkaRefusal(ErrorCode.not_coordinator, "another gateway coordinates this group")
        log = self._open.get(name)
        if log is not None and not log.failed.is_set():
            return log
        if log is not None:
            self._not_before[name] = asyncio.get_running_loop().time() + REOPEN_S
            self._release(name)
        if asyncio.get_running_loop().time() < self._not_before.get(name, 0.0):
            sentence = "the offsets log of this group was lost just now; try again"
            raise KafkaRefusal(ErrorCode.coordinator_not_available, sentence)
        opening = self._opening.get(name)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._take_over(name))
            self._opening[name] = opening
            opening.add_done_callback(partial(self._opened, name))
        try:
            return await asyncio.shield(opening)
        except LogError as error:
            raise KafkaRefusal(ErrorCode.coordinator_not_available, str(error)) from error

    def _opened(self, name: str, opening: "asyncio.Task[OffsetsLog]") -> None:
        del self._opening[name]
        if not opening.cancelled():
            opening.exception()  # all that waited for it may have gone

    async def _take_over(self, name: str) -> OffsetsLog:
        try:
            log = await OffsetsLog.open(
                name,
                self._ledgers,
                self._mirror,
                owner=self._owner,
                initial_delay_ms=self._initial_delay_ms,
                rebalanced=self._rebalanced,
            )
        except LogError as error:
            self._not_before[name] = asyncio.get_running_loop().time() + REOPEN_S
            _log.warning("offsets_log_not_opened", log=name, reason=str(error))
            raise
        self._open[name] = log
        self.takeovers += 1
        return log

    def _rebalanced(self) -> None:
        self.rebalances += 1

    def view_changed(self) -> None:
        """Let the logs go that this gateway does not lead by its present view."""
        for name in [each for each in self._open if not self._leads(each)]:
            self._release(name)

    def _release(self, name: str) -> None:
        """Let *name* go, if it is open. Nothing waits for that, as a request must not."""
        log = self._open.pop(name, None)
        if log is not None:
            releasing = asyncio.get_running_loop().create_task(log.close())
            self._releasing.add(releasing)
            releasing.add_done_callback(self._releasing.discard)

    async def close(self) -> None:
        """Let all go: members look for another coordinator, and find their generation there."""
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for name in list(self._open):
            self._release(name)
        await asyncio.gather(*self._releasing)
        await self._mirror.close()


def new_member_id(client_id: str, instance_id: str | None) -> str:
    """Return what a new member is called: as people know it, and random."""
    return f"{(instance_id or client_id)[:200]}-{secrets.token_hex(16)}"
