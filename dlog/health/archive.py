"""Trouble with segments in object storage: they are not moved, cannot be read, or belong to another
copy of the namespace."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dlog.aio.maintain.archiver import ELECTION
from dlog.aio.store import ManifestNode, log_names
from dlog.archive import object_store
from dlog.archive.object_format import parse_owner
from dlog.archive.object_tail import ObjectTail
from dlog.archive.segment_index import read_run
from dlog.errors import (
    ArchiveMissing,
    DamagedObject,
    InvalidName,
    MalformedObject,
    NoSuchLog,
    ObjectLost,
)
from dlog.health.findings import Finding, Severity, named
from dlog.health.survey import READS_MAX, Reach
from dlog.manifest import Manifest
from dlog.protocol.archive import plan_archive
from dlog.protocol.object_owner import UNMARKED, known_owners
from leader import current_leader
from ledger.errors import DamagedMetadata, LogError
from ledger.log_events import now_ms
from ledger.tasks import for_each
from ledger.values import counted

MANIFESTS_MAX: Final = 10_000
LOOKS_MAX: Final = 100
"""Logs whose objects are looked at: the mark of the owner, the first index, the newest segment."""
LOOK_S: Final = 5.0
LATE_MS: Final = 3_600_000
"""Segments that were due so long ago should be archived."""


@dataclass(frozen=True, slots=True)
class ArchiveFacts:
    logs: int
    """How many have object storage."""
    looked_at: int
    """Of those, whose objects were looked at."""
    archiver: str = ""
    """The archiver that is elected now; empty: none."""
    backlog: tuple[tuple[str, int], ...] = ()
    """Logs, and how many of their segments were due for an hour."""
    unreachable: tuple[tuple[str, str], ...] = ()
    """Logs whose storage does not serve, and why."""
    damaged: tuple[tuple[str, str], ...] = ()
    """Logs with an object that is lost or damaged, and what is wrong."""
    foreign: tuple[str, ...] = ()
    """Logs whose objects belong to another copy of the namespace."""

    def findings(self) -> Iterator[Finding]:
        for log, reason in self.unreachable:
            yield Finding(
                Severity.CRITICAL,
                "object-storage-unreachable",
                f"object storage of log {log} does not serve: {reason}",
                "Archived records cannot be read until it does. Check endpoint, bucket and "
                "credentials of this process (docs/archive.md).",
            )
        for log, reason in self.damaged:
            yield Finding(
                Severity.CRITICAL,
                "object-damaged",
                f"an object of log {log} is lost or damaged: {reason}",
                "Restore it from a version of the bucket; 'dlog log verify LOG' reads all others.",
            )
        if self.foreign:
            yield Finding(
                Severity.WARNING,
                "objects-owned-elsewhere",
                f"objects of {named(self.foreign)} belong to another copy of this namespace: "
                "nothing is archived, and no object is deleted",
                "If this is the copy to keep, stop the other one, then 'dlog log archive LOG "
                "--claim'.",
            )
        if self.backlog:
            count = sum(segments for _, segments in self.backlog)
            yield Finding(
                Severity.WARNING,
                "archive-backlog",
                f"{counted(count, 'segment')} of {named([log for log, _ in self.backlog])} should "
                "have been archived an hour ago",
                f"The log of the archiver ({self.archiver}) has the reason."
                if self.archiver
                else "Run 'dlog archiver run' for each namespace.",
            )

    def summary(self) -> str:
        by = f"archiver {self.archiver}" if self.archiver else "no archiver"
        return f"{counted(self.logs, 'log')} with object storage; {by}"

    def unseen(self) -> Iterator[str]:
        if self.looked_at < self.logs:
            yield f"objects of {counted(self.logs - self.looked_at, 'more log')}"

    def to_dict(self) -> Mapping[str, object]:
        return {
            "logs": self.logs,
            "looked_at": self.looked_at,
            "archiver": self.archiver,
            "backlog": dict(self.backlog),
            "unreachable": dict(self.unreachable),
            "damaged": dict(self.damaged),
            "owned_elsewhere": list(self.foreign),
        }


@dataclass(slots=True)
class _Look:
    unreachable: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)


async def gather_archive(reach: Reach) -> ArchiveFacts:
    """Raises `MetadataUnavailable`."""
    archived: dict[str, Manifest] = {}
    late: dict[str, int] = {}

    async def read(log: str) -> None:
        try:
            manifest, _ = await ManifestNode(reach.store, log).read(fresh=False)
        except (NoSuchLog, DamagedMetadata, InvalidName):
            return  # deleted since; or another check says that it cannot be read
        if manifest.storage and not manifest.dropped:
            archived[log] = manifest
            late[log] = plan_archive(manifest, now_ms() - LATE_MS).segments

    await for_each((await log_names(reach.store))[:MANIFESTS_MAX], read, at_once=READS_MAX)
    look = _Look()
    wanted = sorted(archived)[:LOOKS_MAX]
    await for_each(wanted, lambda log: _look(log, archived[log], look), at_once=READS_MAX)
    archiver = await current_leader(reach.store, ELECTION)
    return ArchiveFacts(
        logs=len(archived),
        looked_at=len(wanted),
        archiver="" if archiver is None else archiver.candidate,
        backlog=tuple(sorted((log, count) for log, count in late.items() if count)),
        unreachable=tuple(sorted(look.unreachable.items())),
        damaged=tuple(sorted(look.damaged.items())),
        foreign=tuple(sorted(look.foreign)),
    )


async def _look(log: str, manifest: Manifest, look: _Look) -> None:
    try:
        async with asyncio.timeout(LOOK_S):
            mark = await object_store.open_folder(manifest.storage).read_mark()
            token = UNMARKED if mark is None else parse_owner(mark).token
            if token not in known_owners(manifest):
                look.foreign.append(log)
            for run in manifest.living_runs[:1]:
                await read_run(log, run)
            for segment in reversed(manifest.segments):
                stored = segment.location.object
                if stored is not None:
                    folder = object_store.open_folder(stored.storage)
                    await (await ObjectTail.open(folder, log, segment)).close()
                    break
    except (ObjectLost, DamagedObject, MalformedObject) as error:
        look.damaged[log] = str(error)
    except TimeoutError:
        look.unreachable[log] = f"no answer in {LOOK_S:g} s"
    except (LogError, ArchiveMissing) as error:
        look.unreachable[log] = str(error)
