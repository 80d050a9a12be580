"""What a check asks the members of a ledger, and what follows from what they say. Pure.

Only what is settled is judged (rule 80). A member that is away, or does not say, lacks nothing: the
check is *unsure* of it. What follows is a suspicion: the worker looks for itself.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil
from random import Random
from typing import Final

from bookie.autorecovery.protocol.repair_plan import (
    NO_SHARE,
    Question,
    ReplicaState,
    Share,
    pieces,
)
from ledger.ids import BookieId
from ledger.mark import Reason
from ledger.metadata import LedgerMetadata
from ledger.quorum import Quorum, write_set

SCRUB_ENTRIES_MIN: Final = 64
"""So many entries are read at once, or all that there are: a read of fewer costs as much."""


@dataclass(frozen=True, slots=True)
class Judgement:
    lacking: tuple[tuple[BookieId, Reason], ...]
    """Who said that it lacks entries, or could not give them when they were read; ascending."""
    unsure: bool
    """Somebody is away, or did not say all."""
    urgent: bool
    """Of an entry fewer than Qa bookies that are there have a right copy."""


def questions(metadata: LedgerMetadata) -> tuple[Question, ...]:
    """Return what is to be asked of a ledger's members, whether they are there or not."""
    found: list[Question] = []
    for fragment in metadata.fragments:
        end = metadata.settled_end(fragment)
        if end is not None and end >= fragment.first_entry:
            found += [
                Question(bookie, index, fragment.first_entry, end)
                for index, bookie in enumerate(fragment.bookies)
            ]
    return tuple(found)


def judge(
    quorum: Quorum,
    asked: tuple[Question, ...],
    said: Mapping[Question, Share],
    read: Mapping[Question, Share],
) -> Judgement:
    """Return what the answers to *asked*, a ledger's `questions`, come to.

    *said*: by what each says that it holds; who is away has no answer there. *read*: what came of
    entries that were read with digests; it says nothing of the others."""
    lacking: dict[BookieId, Reason] = {}
    for question in asked:
        if said.get(question, NO_SHARE).missing:
            lacking.setdefault(question.bookie, Reason.MISSING)
        if read.get(question, NO_SHARE).missing:
            lacking[question.bookie] = Reason.DAMAGED
    unsure = any(question not in said or said[question].unsure for question in asked)
    return Judgement(tuple(sorted(lacking.items())), unsure, _is_urgent(quorum, asked, said, read))


def _is_urgent(
    quorum: Quorum,
    asked: tuple[Question, ...],
    said: Mapping[Question, Share],
    read: Mapping[Question, Share],
) -> bool:
    fragments: dict[int, list[Question]] = {}
    for question in asked:
        fragments.setdefault(question.first, []).append(question)
    for first, members in fragments.items():
        last = members[0].last
        missing = (Share(missing=((first, last),)),)
        parts = [
            (said[each], read.get(each, NO_SHARE)) if each in said else missing for each in members
        ]
        for start, end in pieces(first, last, [share for part in parts for share in part]):
            lacking = [
                index
                for index, part in enumerate(parts)
                if any(share.at(start) is ReplicaState.MISSING for share in part)
            ]
            if _too_few(quorum, lacking, start, end):
                return True
    return False


def is_urgent(metadata: LedgerMetadata, away: Collection[BookieId]) -> bool:
    """Return whether of an entry that the ledger has, or may get soon, fewer than Qa members are
    left without those that are *away*."""
    for fragment in metadata.fragments:
        end = metadata.settled_end(fragment)
        last = fragment.first_entry + metadata.quorum.ensemble if end is None else end
        gone = [index for index, bookie in enumerate(fragment.bookies) if bookie in away]
        if _too_few(metadata.quorum, gone, fragment.first_entry, last):
            return True
    return False


def members_with_entries(metadata: LedgerMetadata) -> frozenset[BookieId]:
    """Return the members of fragments that have entries, or may get some soon."""
    found: set[BookieId] = set()
    for fragment in metadata.fragments:
        end = metadata.settled_end(fragment)
        if end is None or end >= fragment.first_entry:
            found.update(fragment.bookies)
    return frozenset(found)


def settled_ensembles(metadata: LedgerMetadata) -> tuple[tuple[BookieId, ...], ...]:
    """Return the ensembles of settled fragments with entries, each once."""
    found: dict[tuple[BookieId, ...], None] = {}
    for fragment in metadata.fragments:
        end = metadata.settled_end(fragment)
        if end is not None and end >= fragment.first_entry:
            found[fragment.bookies] = None
    return tuple(found)


def _too_few(quorum: Quorum, lacking: Collection[int], first: int, last: int) -> bool:
    """Return whether an entry of first..last is left to fewer than Qa indexes without *lacking*."""
    if len(lacking) <= quorum.write - quorum.ack:
        return False
    return any(
        sum(index not in lacking for index in write_set(entry_id, quorum)) < quorum.ack
        for entry_id in range(first, min(last, first + quorum.ensemble - 1) + 1)
    )


def bounded_share(share: float, *, copies_bytes: int, bytes_max: float) -> float:
    """Return how much of all entries to read so that it is *share*, or about *bytes_max* if that is
    less; *copies_bytes* is what there is to read. A check that cannot end would find nothing."""
    return share if copies_bytes * share <= bytes_max else bytes_max / copies_bytes


def to_read(question: Question, share: float, random: Random) -> Question | None:
    """Return the question narrowed to what a check reads with digests, None if to nothing.

    Chosen so that each entry is read by this *share* of all checks, 0 to 1, and in stretches."""
    count = question.last - question.first + 1
    size = max(SCRUB_ENTRIES_MIN, ceil(count * share))
    stretches = ceil(count / size)
    if random.random() >= share * stretches:
        return None
    start = question.first + size * random.randrange(stretches)
    return replace(question, first=start, last=min(start + size - 1, question.last))
