"""Who leads a log now, for people and for tools. Never a basis for a decision."""

from dataclasses import dataclass

from leader.election import candidacies, leaders_path
from leader.record import CandidateRecord
from ledger.errors import NoSuchNode
from ledger.metastore.port import MetadataStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderInfo:
    log: str
    candidate: str
    epoch: int
    since_ms: int
    """When it stood for election; it leads since then or later."""


async def current_leader(store: MetadataStore, log: str) -> LeaderInfo | None:
    """Return who leads *log* as the store sees it, or None if nobody does.

    A leader that died is named until its session has ended."""
    path = leaders_path(log)
    await store.sync(path)
    try:
        children = await store.children(path)
    except NoSuchNode:
        return None
    for candidacy in candidacies(children):
        node = f"{path}/{candidacy.name}"
        try:
            versioned = await store.get(node)
        except NoSuchNode:
            continue  # it went between the two reads: the next one leads
        record = CandidateRecord.decode(versioned.value, path=node)
        return LeaderInfo(
            log=log,
            candidate=record.candidate,
            epoch=candidacy.sequence,
            since_ms=record.since_ms,
        )
    return None
