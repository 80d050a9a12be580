"""The check of all ledgers: asks every bookie what it holds, and marks what lacks entries.

It finds what no bookie's loss shows: entries that were in flight to a bookie when it died, or was
away for a moment. A share of the entries is read with digests, slowly, so that what nobody reads
does not rot unnoticed. What follows from the answers is decided by `protocol.ledger_check`.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from bookie.autorecovery.ledger_scan import parts_of
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.ledger_check import Judgement, Question, judge, questions, to_read
from bookie.autorecovery.protocol.repair_plan import Share
from bookie.autorecovery.repair_io import Pace
from bookie.autorecovery.replica_check import look
from bookie.autorecovery.reports import CheckRecord
from ledger.client import LedgerClient
from ledger.clock import now_ms
from ledger.concurrently import for_each
from ledger.environment import Environment, repair_credentials
from ledger.ids import LedgerId
from ledger.mark import Lack
from ledger.metadata import LedgerMetadata
from ledger.metastore.port import MetadataStore

LEDGERS_MAX: Final = 8
"""Checked at a time."""


@dataclass(slots=True)
class Check:
    """What a check came to."""

    ledgers: int = 0
    lacking: int = 0
    """Ledgers of which a bookie that is there lacks entries; they are marked."""
    unsure: int = 0
    """Ledgers of which a bookie is away, or did not say all."""
    unreadable: int = 0
    """Ledgers whose metadata cannot be read."""
    bytes: int = 0
    """Payload of CLOSED ledgers, each copy counted."""


@dataclass(frozen=True, slots=True)
class Scrub:
    """How much a check reads, and how fast."""

    share: float
    """Of the entries, 0 to 1."""
    pace: Pace


async def check_all(
    client: LedgerClient,
    *,
    scrub: Scrub | None = None,
    on_progress: Callable[[Check], None] = lambda _: None,
) -> Check:
    """Check all ledgers, and mark what lacks entries; return what was found.

    Without *scrub* no entry is read. Raises `MetadataUnavailable`; what was marked until then
    stays so."""
    check, marks = Check(), Marks(client.store)

    async def work(found: tuple[LedgerId, LedgerMetadata | None]) -> None:
        ledger_id, metadata = found
        check.ledgers += 1
        if metadata is None:
            check.unreadable += 1
            return
        check.bytes += (metadata.length or 0) * metadata.quorum.write
        judgement = await _judged(client.environment, ledger_id, metadata, scrub)
        check.unsure += judgement.unsure
        if judgement.lacking:
            check.lacking += 1
            since_ms = now_ms()
            lacks = [Lack(bookie, reason, since_ms) for bookie, reason in judgement.lacking]
            await marks.add(ledger_id, lacks, urgent=judgement.urgent)

    async for part in parts_of(client.ledgers):
        before = check.lacking
        await for_each(part, work, at_once=LEDGERS_MAX)
        if check.lacking > before:
            await marks.ring()
        on_progress(check)
    return check


async def _judged(
    environment: Environment, ledger_id: LedgerId, metadata: LedgerMetadata, scrub: Scrub | None
) -> Judgement:
    registered = {found.bookie for found in environment.bookies.available()}
    credentials = repair_credentials(ledger_id, metadata)
    asked = questions(metadata)
    said: dict[Question, Share] = {}
    read: dict[Question, Share] = {}
    for question in asked:
        if question.bookie not in registered:
            continue
        at = environment.transport, credentials, question.bookie, question.index, metadata.quorum
        said[question] = await look(*at, question.first, question.last, thorough=False)
        if scrub is None:
            continue
        if some := to_read(question, scrub.share, environment.random):
            read[question] = await look(*at, *some, thorough=True, pace=scrub.pace.take)
    return judge(metadata.quorum, asked, said, read)


async def record(store: MetadataStore, check: Check, *, at_ms: int) -> None:
    """Write down how *check* ended: the next one is due a while after that, whoever makes it."""
    await CheckRecord(at_ms=at_ms, **asdict(check)).write(store)
