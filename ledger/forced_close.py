"""The last resort for a ledger that no recovery can close: its end is given, not found.

A recovery decides only what it can prove, so it waits for bookies that are gone for good, and for
those that deny nothing. Here an operator decides, with numbers: which bookie holds what, which LAC
is proven, who is fenced, what is cut. It is a procedure:

    IN_RECOVERY     so no writer changes the ensemble any more
    fence           each member of the last fragment that can be reached
    list            what each bookie of the cluster holds, also those that no fragment names
    copy            each entry up to the end to the members that lack it
    CLOSED          at the end

Without an end that is given, the evidence has to be complete: each bookie of the cluster said all
that it holds, and that it never had more. Then each entry that was ever acknowledged is held, and
the ledger ends before the first that nobody has. That is so whatever the recorded ensembles are,
as after a restore of the metadata store to a moment before an ensemble was changed.

Invariants:
    CLOSED is terminal: a ledger that is closed keeps its end
    nothing is closed below a proven LAC, unless that is asked for in so many words
    nothing is closed above an entry that nobody holds
    each entry from the last fragment's first to the end is with a member before it is closed
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from ledger.entry import Header
from ledger.environment import Credentials, Environment, repair_credentials, runs_of
from ledger.errors import (
    BadVersion,
    EndBelowConfirmed,
    EndNotHeld,
    EndUncertain,
    LedgerClosed,
    MetadataUnavailable,
    RecoveryFailed,
)
from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.protocol.answers import fence_is_certain, proven_lac, verified
from ledger.quorum import Quorum, holds
from ledger.requests import AddRun, HeldAnswer, HeldQuery, LacQuery, ReadQuery, Status

TRIES_MAX: Final = 5
"""Of the closing compare-and-swap; each is undone only by somebody else's."""
ASKS_MAX: Final = 3
ASK_AGAIN_S: Final = 0.3
READ_BYTES_MAX: Final = 4 * 1024 * 1024
_LAST_ID: Final = 2**62

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class BookieHolding:
    """What one bookie says of a ledger."""

    bookie: BookieId
    is_member: bool
    """Whether the last fragment names it."""
    status: Status
    """Of its list."""
    spans: tuple[Span, ...]
    """What it holds from the last fragment on, ascending."""
    is_complete: bool
    """Whether it said that it has nothing else, and never had."""
    lac: int
    """The highest that it can prove; -1: none."""
    is_fenced: bool
    is_deleted: bool = False
    """Whether the ledger was deleted here: it takes no fence for it."""

    @property
    def answers(self) -> bool:
        return self.status is not Status.UNREACHABLE

    @property
    def last_entry(self) -> int:
        """The highest entry that it holds from the last fragment on; -1: none."""
        return self.spans[-1][1] if self.spans else NO_ENTRY

    def has(self, entry_id: int) -> bool:
        return any(first <= entry_id <= last for first, last in self.spans)

    def count_above(self, end: int) -> int:
        """Return how many entries it holds above *end*."""
        return sum(last - max(first, end + 1) + 1 for first, last in self.spans if last > end)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What all bookies that could be asked say of a ledger."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    holdings: tuple[BookieHolding, ...]

    @property
    def first(self) -> int:
        """The first entry of the last fragment: all below is confirmed."""
        return self.metadata.last_fragment.first_entry

    @property
    def confirmed(self) -> int:
        """The highest entry that is proven to be confirmed."""
        return max(self.first - 1, *(holding.lac for holding in self.holdings))

    @property
    def end(self) -> int:
        """The last entry such that all up to it from the last fragment on are held by somebody."""
        end = self.first - 1
        for first, last in sorted(span for holding in self.holdings for span in holding.spans):
            if first > end + 1:
                break
            end = max(end, last)
        return end

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why there may have been more than is held; none: there was not."""
        found = [
            f"{holding.bookie} does not answer"
            if not holding.answers
            else f"{holding.bookie} does not say that it never had more"
            for holding in self.holdings
            if not holding.is_complete
        ]
        if self.end < self.confirmed:
            found.append(f"entry {self.confirmed} is confirmed, and nobody holds {self.end + 1}")
        return tuple(found)

    def holders(self, entry_id: int) -> list[BookieId]:
        """Return who holds the entry, members first."""
        ordered = sorted(self.holdings, key=lambda holding: not holding.is_member)
        return [holding.bookie for holding in ordered if holding.has(entry_id)]


@dataclass(frozen=True, slots=True)
class ForcedClose:
    """How a ledger was closed."""

    evidence: Evidence
    """As it was when the members that could be reached were fenced."""
    metadata: LedgerMetadata
    short: int = 0
    """Entries with fewer than Qa copies at the members: they are left to repair."""

    @property
    def cut(self) -> int:
        """How many entries above the end somebody holds."""
        assert self.metadata.last_entry is not None, "it is CLOSED"
        above = self.metadata.last_entry + 1
        spans = [(max(a, above), b) for h in self.evidence.holdings for a, b in h.spans]
        return sum(last - first + 1 for first, last in union(spans))


async def gather_evidence(
    environment: Environment,
    credentials: Credentials,
    metadata: LedgerMetadata,
    *,
    fence: bool = False,
    known: Collection[BookieId] = (),
) -> Evidence:
    """Ask all bookies that are registered, that the ledger names, or that are *known*; with *fence*
    fence the members of its last fragment first. Otherwise nothing changes."""
    members = metadata.last_fragment.bookies
    named = [bookie for fragment in metadata.fragments for bookie in fragment.bookies]
    there = [BookieId(found.bookie) for found in environment.bookies.available()]
    bookies = dict.fromkeys((*members, *named, *there, *known))

    async def ask(bookie: BookieId) -> BookieHolding:
        is_member = bookie in members
        return await _holding(
            environment, credentials, metadata, bookie, is_member=is_member, fence=fence
        )

    holdings = await asyncio.gather(*map(ask, bookies))
    return Evidence(credentials.ledger_id, metadata, tuple(holdings))


async def force_close(
    environment: Environment,
    ledger_id: LedgerId,
    end: int | None,
    *,
    credentials: Credentials | None = None,
    below_confirmed: bool = False,
    known: Collection[BookieId] = (),
) -> ForcedClose:
    """Close the ledger at *end*, or, if that is None, where complete evidence shows that it ends.

    *known*: bookies that must have been asked, whether they are registered or not. Raises
    `LedgerClosed`, `EndBelowConfirmed` unless *below_confirmed*, `EndNotHeld`, `EndUncertain`,
    `RecoveryFailed` if too few bookies take copies; then it stays IN_RECOVERY, and it may be
    repeated. Raises `NoSuchLedger`, `MetadataUnavailable`."""
    for _ in range(TRIES_MAX):
        metadata, version = await environment.ledgers.read(ledger_id, fresh=True)
        if metadata.state is LedgerState.CLOSED:
            assert metadata.last_entry is not None, "it is CLOSED"
            raise LedgerClosed(ledger_id, metadata.last_entry)
        with suppress(BadVersion):  # its writer, a recovery, or repair was faster
            if metadata.state is LedgerState.OPEN:
                metadata = metadata.in_recovery()
                version = await environment.ledgers.write(ledger_id, metadata, version)
            keys = credentials or repair_credentials(ledger_id, metadata)
            evidence = await gather_evidence(environment, keys, metadata, fence=True, known=known)
            last = _checked_end(evidence, end, below_confirmed=below_confirmed)
            closed, short = await _closed(environment, keys, evidence, last)
            await environment.ledgers.write(ledger_id, closed, version)
            environment.doubt(ledger_id, closed.last_fragment.bookies)
            return ForcedClose(evidence, closed, short)
    raise MetadataUnavailable(
        environment.uri, f"the close of ledger {ledger_id}", 0.0, "others change it all the time"
    )


def _checked_end(evidence: Evidence, end: int | None, *, below_confirmed: bool) -> int:
    if end is None:
        if evidence.doubts:
            raise EndUncertain(evidence.ledger_id, evidence.end, evidence.doubts)
        return evidence.end
    if end < evidence.confirmed and not below_confirmed:
        raise EndBelowConfirmed(evidence.ledger_id, end, evidence.confirmed)
    if end > evidence.end:
        raise EndNotHeld(evidence.ledger_id, end, evidence.end)
    return end


async def _closed(
    environment: Environment, credentials: Credentials, evidence: Evidence, end: int
) -> tuple[LedgerMetadata, int]:
    """Copy what members lack up to *end*; return the metadata to write, and for how many entries
    fewer than Qa members have it."""
    metadata = evidence.metadata
    length, short = 0, 0
    if end >= evidence.first:
        gone = [one.bookie for one in evidence.holdings if one.is_member and not one.answers]
        metadata = _without(environment, metadata, gone)
        copier = Copier(environment, credentials, metadata.quorum)
        there = {one.bookie: one.spans for one in evidence.holdings if one.answers}
        members = metadata.last_fragment.bookies
        there |= {bookie: () for bookie in members if bookie not in there and bookie not in gone}
        await copier.copy(evidence.first, end, members, there)
        for entry_id in range(evidence.first, end + 1):
            copies = copier.copies(entry_id, members)
            if not copies:
                reason = f"no bookie of its last fragment takes entry {entry_id}"
                raise RecoveryFailed(evidence.ledger_id, reason)
            short += copies < metadata.quorum.ack
        length = copier.length
    elif end >= 0:
        length = await _length_at(environment, credentials, metadata, end)
    return metadata.closed(EntryId(end), length), short


def _without(
    environment: Environment, metadata: LedgerMetadata, gone: Sequence[BookieId]
) -> LedgerMetadata:
    """Replace the members of the last fragment that are *gone*, as far as there are others."""
    if not gone:
        return metadata
    last = metadata.last_fragment
    indexes = [index for index, bookie in enumerate(last.bookies) if bookie in gone]
    bookies = list(last.bookies)
    for index, bookie in environment.replacements(metadata.quorum, bookies, indexes, gone):
        bookies[index] = bookie
    fragments = (*metadata.fragments[:-1], Fragment(last.first_entry, tuple(bookies)))
    return replace(metadata, fragments=fragments)


async def _length_at(
    environment: Environment, credentials: Credentials, metadata: LedgerMetadata, entry_id: int
) -> int:
    """Return the bytes of all payloads up to an entry. Raises `EndNotHeld`."""
    for bookie in metadata.fragment_of(entry_id).bookies:
        query = ReadQuery(credentials.ledger_id, credentials.key, entry_id, entry_id, repairs=True)
        answer = await environment.transport.read(bookie, query)
        header = verified(answer, credentials.ledger_id, credentials.checks).headers.get(entry_id)
        if header is not None:
            return header.length
    raise EndNotHeld(credentials.ledger_id, entry_id, NO_ENTRY)


@dataclass(slots=True)
class Copier:
    """Copies entries of one ledger between bookies, each verified, its bytes unchanged."""

    environment: Environment
    credentials: Credentials = field(repr=False)
    quorum: Quorum
    length: int = 0
    """Of all payloads up to the last entry that was seen."""
    copied: int = 0
    """Entries that were sent and taken, each copy counted."""
    _held: dict[BookieId, list[Span]] = field(default_factory=dict)

    async def copy(
        self,
        first: int,
        last: int,
        members: Sequence[BookieId],
        spans: Mapping[BookieId, Iterable[Span]],
    ) -> None:
        """Bring what *members* lack of their share of first..last to them, from whoever has it by
        *spans*: all bookies that answer. Raises `EndNotHeld` at an entry that nobody gives."""
        self._held = {bookie: list(held) for bookie, held in spans.items()}
        position = first
        while position <= last:
            frames = await self._read(position, last)
            sent = [
                self._send(bookie, index, frames)
                for index, bookie in enumerate(members)
                if bookie in self._held
            ]
            await asyncio.gather(*sent)
            position += len(frames)

    def copies(self, entry_id: int, members: Sequence[BookieId]) -> int:
        """Return how many *members* of its write set hold the entry, as far as is known."""
        return sum(
            holds(index, entry_id, self.quorum) and self._has(bookie, entry_id)
            for index, bookie in enumerate(members)
        )

    async def _read(self, first: int, last: int) -> dict[int, bytes]:
        """Return frames from *first* on, without a gap, at least one."""
        for bookie in self._held:
            span = next((s for s in self._held[bookie] if s[0] <= first <= s[1]), None)
            if span is None:
                continue
            query = ReadQuery(
                self.credentials.ledger_id,
                self.credentials.key,
                first,
                min(last, span[1]),
                bytes_max=READ_BYTES_MAX,
                repairs=True,
            )
            answer = await self.environment.transport.read(bookie, query)
            found = verified(answer, self.credentials.ledger_id, self.credentials.checks)
            frames: dict[int, bytes] = {}
            header: Header | None = None
            while (entry_id := first + len(frames)) in found.frames:
                frames[entry_id] = bytes(found.frames[entry_id])
                header = found.headers[entry_id]
            if header is not None:
                self.length = header.length
                return frames
        raise EndNotHeld(self.credentials.ledger_id, last, first - 1)

    async def _send(self, bookie: BookieId, index: int, frames: Mapping[int, bytes]) -> None:
        lacking = [
            entry_id
            for entry_id in frames
            if holds(index, entry_id, self.quorum) and not self._has(bookie, entry_id)
        ]
        if not lacking:
            return
        runs = runs_of(lacking, frames, self.credentials, bytes_max=READ_BYTES_MAX, recovery=True)
        for run in runs:
            status = Status.TOO_MANY_REQUESTS
            for _ in range(ASKS_MAX):
                status = await self._add(bookie, run)
                if status not in {Status.UNREACHABLE, Status.TOO_MANY_REQUESTS}:
                    break
                await asyncio.sleep(ASK_AGAIN_S)
            if status is not Status.OK:
                return
            self._held[bookie] += [(entry_id, entry_id) for entry_id in run.entries]
            self._held[bookie] = list(union(self._held[bookie]))
            self.copied += len(run.entries)

    async def _add(self, bookie: BookieId, run: AddRun) -> Status:
        done: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.environment.transport.add(bookie, run, done.set_result)
        return await done

    def _has(self, bookie: BookieId, entry_id: int) -> bool:
        return any(first <= entry_id <= last for first, last in self._held.get(bookie, ()))


def union(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield *spans* ascending, those as one that touch or overlap; empty ones are left out."""
    current: Span | None = None
    for first, last in sorted(span for span in spans if span[0] <= span[1]):
        if current is None:
            current = first, last
        elif first <= current[1] + 1:
            current = current[0], max(current[1], last)
        else:
            yield current
            current = first, last
    if current is not None:
        yield current


async def listed(
    environment: Environment, credentials: Credentials, bookie: BookieId, first: int, last: int
) -> tuple[Status, tuple[Span, ...], bool]:
    """Ask what a bookie holds of first..last: its status, the spans, and whether it denies all
    else."""
    spans: list[Span] = []
    is_complete, position = True, first
    while position <= last:
        query = HeldQuery(credentials.ledger_id, credentials.key, position, last)
        answer = await _held(environment, bookie, query)
        if answer.status is Status.NO_SUCH_LEDGER:
            return answer.status, tuple(union(spans)), is_complete
        if answer.status not in {Status.OK, Status.UNKNOWN, Status.IO_ERROR}:
            # Of another key: of another ledger of the same id, so it has nothing of this one.
            return answer.status, tuple(spans), answer.status is Status.WRONG_KEY
        spans += answer.ranges()
        is_complete = is_complete and answer.considered >= min(answer.listed, last)
        if answer.listed < position:
            return answer.status, tuple(union(spans)), False
        position = answer.listed + 1
    return Status.OK if is_complete else Status.UNKNOWN, tuple(union(spans)), is_complete


async def _held(environment: Environment, bookie: BookieId, query: HeldQuery) -> HeldAnswer:
    for _ in range(ASKS_MAX - 1):
        answer = await environment.transport.read_held(bookie, query)
        if answer.status not in {Status.UNREACHABLE, Status.TOO_MANY_REQUESTS}:
            return answer
        await asyncio.sleep(ASK_AGAIN_S)
    return await environment.transport.read_held(bookie, query)


async def _holding(
    environment: Environment,
    credentials: Credentials,
    metadata: LedgerMetadata,
    bookie: BookieId,
    *,
    is_member: bool,
    fence: bool,
) -> BookieHolding:
    query = LacQuery(credentials.ledger_id, credentials.key, fence=fence and is_member)
    answer = await environment.transport.read_lac(bookie, query)
    first = metadata.last_fragment.first_entry
    status, spans, is_complete = await listed(environment, credentials, bookie, first, _LAST_ID)
    is_deleted = query.fence and answer.status is Status.NO_SUCH_LEDGER and not answer.fenced
    if query.fence and not (fence_is_certain(answer) or is_deleted):
        is_complete = False  # it may have taken more since
    return BookieHolding(
        bookie,
        is_member,
        status,
        spans,
        is_complete or is_deleted,
        proven_lac(answer.lac_proof, credentials.ledger_id, credentials.checks),
        answer.fenced,
        is_deleted,
    )
