"""One read of a reader: drives `protocol.read`, one machine for each."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from ledger import metrics
from ledger.entry import payload_of
from ledger.environment import Credentials, Environment
from ledger.errors import EntryLost, EntryUnavailable, KeyDiffers, LogError, NoSuchLedger
from ledger.ids import EntryId
from ledger.machine_loop import MachineLoop, read_metadata
from ledger.protocol import common_events
from ledger.protocol import read as protocol
from ledger.protocol.answers import Found, repair_hints, verified
from ledger.reader_state import Known
from ledger.requests import ReadQuery, Status


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as read and verified."""

    entry_id: EntryId
    payload: memoryview
    last_add_confirmed: int
    length: int
    """Payload bytes of this entry and all before it."""


class Read:
    """One call of `LedgerReader.read_some`."""

    def __init__(
        self,
        environment: Environment,
        credentials: Credentials,
        known: Known,
        first: int,
        last: int | None,
        bytes_max: int,
        wait_s: float,
        *,
        unconfirmed: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._environment = environment
        self._credentials = credentials
        self._known = known
        self._first = first
        self._bytes_max = bytes_max
        self._entries: dict[int, Entry] = {}
        self._delivered: list[Entry] = []
        self._over: asyncio.Future[None] = loop.create_future()
        self._failures: list[str] = []
        self._machine = protocol.Reading(
            known.metadata,
            first=first,
            last=(1 << 62) if last is None else last,
            last_add_confirmed=known.last_add_confirmed,
            give_up_at=loop.time() + wait_s,
            avoid=environment.quarantined(),
            unconfirmed=unconfirmed,
        )
        self._run: MachineLoop[protocol.ReadingEvent, protocol.ReadingEffect] = MachineLoop(
            self._machine,
            self._execute,
            time_passed=common_events.TimePassed(),
            broken=self.fail,
        )

    async def finished(self) -> list[Entry]:
        self.post(protocol.ReadStarted())
        await self._over
        return self._delivered

    def post(self, event: protocol.ReadingEvent) -> None:
        self._run.post(event)

    def fail(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def stop(self) -> None:
        """End it, and keep nothing of what was read: a machine and its driver know each other, so
        what they hold goes with the next search for garbage, which may be some time."""
        self._run.stop()
        self._entries, self._delivered = {}, []

    def _execute(self, effect: protocol.ReadingEffect) -> None:
        match effect:
            case protocol.SendRead():
                self._run.spawn(self._read(effect))
            case common_events.ReadMetadata():
                ledgers = self._environment.ledgers
                self._run.spawn(read_metadata(ledgers, self._credentials.ledger_id))
            case protocol.Deliver():
                self._learn()
                if not self._over.done():
                    ids: Sequence[int] = range(effect.first, effect.last + 1)
                    self._delivered = [self._entries[entry_id] for entry_id in ids]
                    self._over.set_result(None)
            case protocol.FailRead():
                self._learn()
                self.fail(self._error_of(effect.failure))
            case _:
                assert_never(effect)

    async def _read(self, effect: protocol.SendRead) -> protocol.ReadingEvent:
        query = ReadQuery(
            self._credentials.ledger_id,
            self._credentials.key,
            effect.first,
            effect.last,
            bytes_max=self._bytes_max,
            wait_ms=effect.wait_ms,
        )
        confirmed = self._known.last_add_confirmed
        answer = await self._environment.transport.read(effect.bookie, query)
        found = verified(answer, self._credentials.ledger_id, self._credentials.checks)
        self._report(effect, found, confirmed)
        for entry_id, header in found.headers.items():
            frame = found.frames[entry_id]
            self._entries[entry_id] = Entry(
                EntryId(entry_id),
                payload_of(frame, header),
                header.last_add_confirmed,
                header.length,
            )
        if found.damaged is not None:
            metrics.DIGEST_MISMATCHES.add()
        elif found.status is not Status.OK:
            metrics.REFUSED_READS.add(found.status.name.lower())
        if found.damaged is not None or found.status is not Status.OK:
            self._failures.append(f"{effect.bookie}: {found.status.name}")
        return protocol.EntriesRead(
            effect.index,
            effect.attempt,
            found.status,
            tuple(found.headers),
            found.last_add_confirmed,
            found.fenced,
        )

    def _report(self, asked: protocol.SendRead, found: Found, confirmed: int) -> None:
        damaged = found.damaged is not None
        self._environment.reported(asked.bookie, Status.DAMAGED if damaged else found.status)
        hints = repair_hints(
            found,
            bookie=asked.bookie,
            index=asked.index,
            asked=range(asked.first, asked.last + 1),
            confirmed=confirmed,
            quorum=self._known.metadata.quorum,
        )
        metadata = self._known.metadata
        for hint in hints:
            self._known.take_hint(hint)
            # Else it may still be on its way, and repair has nothing to do with it.
            if metadata.settled_end(metadata.fragment_of(hint.entry_id)) is not None:
                self._environment.suspect(self._credentials.ledger_id, hint)

    def _learn(self) -> None:
        self._known.learn(self._machine.metadata)
        self._known.learn_confirmed(self._machine.last_add_confirmed)

    def _error_of(self, failure: protocol.Failure) -> LogError:
        ledger_id = self._credentials.ledger_id
        reason = "; ".join(dict.fromkeys(self._failures)) or failure.value
        match failure:
            case protocol.Failure.DELETED:
                return NoSuchLedger(ledger_id)
            case protocol.Failure.WRONG_KEY:
                return KeyDiffers(ledger_id)
            case protocol.Failure.ACCESS_DENIED:
                what = f"read ledger {ledger_id}"
                return self._environment.denied(what, "reader", self._known.metadata)
            case protocol.Failure.LOST:
                return EntryLost(ledger_id, self._first, reason)
            case protocol.Failure.UNAVAILABLE:
                return EntryUnavailable(ledger_id, self._first, reason)
            case _:
                assert_never(failure)
