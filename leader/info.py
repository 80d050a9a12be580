"""Who leads a log now, for people and for tools. Never a basis for a decision."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from leader.election import LEADERS_PATH, candidacies, leaders_path
from leader.record import CandidateRecord
from ledger.errors import DamagedMetadata, NoSuchNode
from ledger.metastore.port import MetadataStore

UNREADABLE: Final = "(unreadable)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderInfo:
    log: str
    candidate: str
    """`UNREADABLE` if its record is damaged, or of a later version."""
    address: str
    """Where clients reach it, as it said itself; empty: it said nothing."""
    epoch: int
    since_ms: int
    """When it stood for election; it leads since then or later. 0: not known."""


async def current_leader(store: MetadataStore, log: str) -> LeaderInfo | None:
    """Return who leads *log* as the store sees it, or None if nobody does.

    A leader that died is named until its session has ended."""
    found = await _candidates(store, log, count_max=1)
    return found[0] if found else None


async def candidates(store: MetadataStore, log: str) -> list[LeaderInfo]:
    """Return who leads *log* and, after it, who waits to, in the order in which they will."""
    return await _candidates(store, log, count_max=None)


async def contested_logs(store: MetadataStore) -> list[str]:
    """Return the names of elections that anybody ever stood in and that are not forgotten."""
    await store.sync(LEADERS_PATH)
    try:
        children = await store.children(LEADERS_PATH)
    except NoSuchNode:
        return []
    return sorted(map(unquote, children))


async def is_led(store: MetadataStore, log: str) -> bool | None:
    """Return whether anybody stands for election, as the store sees it without `sync`; None if
    nobody ever did. One call, for who looks at many logs. Raises `MetadataUnavailable`."""
    try:
        children = await store.children(leaders_path(log))
    except NoSuchNode:
        return None
    return bool(candidacies(children))


async def _candidates(store: MetadataStore, log: str, *, count_max: int | None) -> list[LeaderInfo]:
    path = leaders_path(log)
    await store.sync(path)
    try:
        children = await store.children(path)
    except NoSuchNode:
        return []
    found: list[LeaderInfo] = []
    for candidacy in candidacies(children):
        if count_max is not None and len(found) >= count_max:
            break
        node = f"{path}/{candidacy.name}"
        try:
            versioned = await store.get(node)
        except NoSuchNode:
            continue  # it went between the two reads: the next one leads
        try:
            record = CandidateRecord.decode(versioned.value, path=node)
        except DamagedMetadata:  # its session shows who leads, whatever its record says
            record = CandidateRecord(UNREADABLE, 0)
        found.append(
            LeaderInfo(
                log=log,
                candidate=record.candidate,
                address=record.address,
                epoch=candidacy.sequence,
                since_ms=record.since_ms,
            )
        )
    return found
