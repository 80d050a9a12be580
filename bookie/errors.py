"""Errors of a bookie.

CallerError
|- PortInUse
|- AddressUnusable
|- TooFewDescriptors       the system lets it open too few files and connections
|- InvalidSetting          a setting has an invalid value
|- InvalidBookieName
|- DirectoryInUse          another bookie runs on this directory
|- DirectoryUnusable       it cannot be created, read or locked
|- DirectoryGivenTwice     as two journal or two ledger directories
|- CollectionUnderWay      a run was requested while another one is in progress
|- BookieRunning           its name is registered by a running process
|- BookiesThere            a restored store is accepted only while no bookie runs
`- WrongDirectory          the directory's identity is not the expected one (rule 74)
   |- ForeignCluster       it belongs to another cluster
   |- ForeignBookie        it belongs to another bookie of this cluster
   |- CookieMissing        it has an identity that the cluster does not know
   |- DataMissing          the cluster knows the bookie, but its data is not here
   |- DataOutdated         its data is here as it was before its last start, or checkpoint
   |- DataCopied           its data was copied, and not after a clean stop
   |- StoreOutdated        the metadata store knows less of it than its data does
   |- BookieRetired        the data of this name were given up
   |- DirectoriesChanged   the data is in other directories, or in more or fewer, than were given
   |- DirectoryMisplaced   it is one of the bookie's, but another one than it was given as
   `- DirectoriesMixed     the directories are not of the same data
StorageError
|- StoreNotBelieved        the metadata store is not the bookie's, or is an older one
|- BookieSuperseded        its identity was taken over, retired or forgotten; it has stopped
|- BookieFailed            the disk failed under a running bookie; it has stopped
|- OrderNotKept            an operator's order could not be made durable; nothing has changed
|- StorageFailed           the same, from the storage engine: it refuses all further calls
|  `- JournalFailed
`- FileDamaged             a file differs from what was written, at a known byte
   |- JournalDamaged
   |- JournalMissing
   |- MarkDamaged
   |- EntryLogDamaged
   |- IndexDamaged
   |- CookieDamaged
   `- CensusDamaged
"""

from collections.abc import Sequence
from typing import Final

from ledger.errors import CallerError, StorageError


class PortInUse(CallerError):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"{host}:{port} is in use by another process; stop that one or choose another port"
        )
        self.host, self.port = host, port


class AddressUnusable(CallerError):
    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"cannot listen on {host}:{port}: {reason}; give an address of this machine"
        )
        self.host, self.port, self.reason = host, port, reason


class TooFewDescriptors(CallerError):
    def __init__(self, limit: int, needed: int) -> None:
        super().__init__(
            f"this process may open {limit} files and connections, but a bookie needs {needed}; "
            "raise the limit ('ulimit -n', LimitNOFILE)"
        )
        self.limit, self.needed = limit, needed


class InvalidSetting(CallerError):
    def __init__(self, setting: str, value: float | str, reason: str) -> None:
        super().__init__(f"{setting} cannot be {value}: {reason}")
        self.setting, self.value, self.reason = setting, value, reason


class InvalidBookieName(CallerError):
    def __init__(self, bookie: str) -> None:
        super().__init__(
            f"{bookie!r} cannot be the name of a bookie; use printable characters without '/'"
        )
        self.bookie = bookie


class DirectoryInUse(CallerError):
    def __init__(self, directory: str, holder: str = "") -> None:
        who = f"another bookie (process {holder})" if holder else "another bookie"
        super().__init__(f"{who} runs on {directory}; stop it or give this one its own directory")
        self.directory, self.holder = directory, holder


class DirectoryUnusable(CallerError):
    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"{directory} cannot be used as a directory for data: {reason}")
        self.directory, self.reason = directory, reason


class DirectoryGivenTwice(CallerError):
    def __init__(self, directory: str, role: str) -> None:
        super().__init__(
            f"{directory} was given as two {role} directories; each needs a directory of its own"
        )
        self.directory, self.role = directory, role


class WrongDirectory(CallerError):
    """A bookie was started on data that is not its own, or without its data."""


class ForeignCluster(WrongDirectory):
    def __init__(self, directory: str, found: str, expected: str) -> None:
        super().__init__(
            f"{directory} belongs to cluster {found}, the namespace is cluster {expected}; "
            "check the namespace URI, or use an empty directory"
        )
        self.directory, self.found, self.expected = directory, found, expected


class ForeignBookie(WrongDirectory):
    def __init__(self, directory: str, found: str, expected: str) -> None:
        super().__init__(
            f"{directory} belongs to bookie {found}, this is bookie {expected}; "
            "start it under that name, or use an empty directory"
        )
        self.directory, self.found, self.expected = directory, found, expected


class CookieMissing(WrongDirectory):
    def __init__(self, directory: str, bookie: str) -> None:
        super().__init__(
            f"{directory} holds data of bookie {bookie}, which the cluster does not know "
            "(any more); its ledgers may have been repaired elsewhere. Use an empty directory"
        )
        self.directory, self.bookie = directory, bookie


class DataMissing(WrongDirectory):
    def __init__(self, directory: str, bookie: str, reason: str) -> None:
        super().__init__(
            f"bookie {bookie} is known to the cluster, but {directory} does not hold its data: "
            f"{reason}. Restore the data, or start a bookie of another name; a bookie that "
            "forgot what it promised would lose acknowledged entries"
        )
        self.directory, self.bookie, self.reason = directory, bookie, reason


_NEWEST: Final = (
    "Restore the newest data; if they are lost, `dlog bookie accept-loss` lets it start and "
    "deny nothing that it may have known, until its open ledgers are recovered"
)


class DataOutdated(WrongDirectory):
    def __init__(self, directory: str, bookie: str, reason: str) -> None:
        super().__init__(
            f"{directory} holds data of bookie {bookie} that are not the newest: {reason}. They "
            "are a restored backup, or a copy whose original was used since; a bookie that forgot "
            f"what it promised would lose acknowledged entries. {_NEWEST}"
        )
        self.directory, self.bookie, self.reason = directory, bookie, reason


class DataCopied(WrongDirectory):
    def __init__(self, directory: str, bookie: str) -> None:
        super().__init__(
            f"{directory} holds a copy of the data of bookie {bookie}: these are not the files "
            "that it used last, and it was not stopped cleanly before they were copied, or "
            "was used since, so something may be missing. Copies are for bookies that were "
            f"stopped with SIGTERM. {_NEWEST}"
        )
        self.directory, self.bookie = directory, bookie


class StoreOutdated(WrongDirectory):
    def __init__(self, directory: str, bookie: str, here: int, stored: int) -> None:
        super().__init__(
            f"{directory} holds data of bookie {bookie} of its start {here}, but the metadata "
            f"store knows of start {stored} only: it was restored from a backup, or is another "
            "one. Restore the newest metadata; if they are lost, stop all bookies and accept that "
            "once for all of them: `dlog metadata accept-restore`"
        )
        self.directory, self.bookie, self.here, self.stored = directory, bookie, here, stored


class BookieRetired(WrongDirectory):
    def __init__(self, bookie: str, why: str) -> None:
        super().__init__(
            f"the name {bookie} is retired: {why}. What it had promised is not kept, so it never "
            "serves again; start the bookie on empty directories, under another --id or none"
        )
        self.bookie, self.why = bookie, why


class BookiesThere(CallerError):
    retryable = True

    def __init__(self, bookies: Sequence[str]) -> None:
        super().__init__(
            f"bookies are registered: {', '.join(bookies)}. A restored metadata store is "
            "accepted only while none runs, so that each of them learns of it: stop them all; the "
            "registration of a process that is gone expires with its session, in some seconds"
        )
        self.bookies = tuple(bookies)


class BookieRunning(CallerError):
    def __init__(self, bookie: str, address: str, waited_s: float) -> None:
        super().__init__(
            f"bookie {bookie} is registered at {address}, and still is after {waited_s:g} s: "
            "its data are used elsewhere, and these are a copy. Stop that one first, or remove "
            "the copy"
        )
        self.bookie, self.address, self.waited_s = bookie, address, waited_s


class CollectionUnderWay(CallerError):
    retryable = True

    def __init__(self, running: str) -> None:
        super().__init__(f"a run is already in progress ({running}); wait until it ends")
        self.running = running


class DirectoriesChanged(WrongDirectory):
    def __init__(self, directory: str, found: str, expected: str) -> None:
        super().__init__(
            f"{directory} belongs to a bookie with the directories [{found}], it was started with "
            f"[{expected}]; give the same number of journal and ledger directories as at the "
            "first start, in the same order, which determines the place of each ledger"
        )
        self.directory, self.found, self.expected = directory, found, expected


class DirectoryMisplaced(WrongDirectory):
    def __init__(self, directory: str, found: str, expected: str) -> None:
        super().__init__(
            f"{directory} is [{found}] of this bookie, but was given as [{expected}]; "
            "give the directories in the order of the first start"
        )
        self.directory, self.found, self.expected = directory, found, expected


class DirectoriesMixed(WrongDirectory):
    def __init__(self, directory: str, other: str) -> None:
        super().__init__(
            f"{directory} and {other} hold data of one bookie from two initializations; "
            "they do not belong together. Give the directories that do, or empty ones"
        )
        self.directory, self.other = directory, other


class StoreNotBelieved(StorageError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"the metadata store is not trusted: {reason}")
        self.reason = reason


class BookieSuperseded(StorageError):
    TWO: Final = (
        "Two processes must not serve the same data; find out which directories are the "
        "newest, and remove the others"
    )
    GONE: Final = (
        "No ledger relies on its data. Start a bookie on empty directories, under "
        "another --id or none"
    )

    def __init__(self, bookie: str, reason: str, action: str = TWO) -> None:
        super().__init__(f"bookie {bookie} has lost its identity and ends: {reason}. {action}")
        self.bookie, self.reason = bookie, reason


class BookieFailed(StorageError):
    def __init__(self, bookie: str, reason: str) -> None:
        super().__init__(
            f"bookie {bookie} stopped because its storage failed: {reason}. "
            "Nothing is acknowledged that is not on disk; check the disk, then start it again"
        )
        self.bookie, self.reason = bookie, reason


class OrderNotKept(StorageError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"the operator's request cannot be stored in {path}: {reason}. "
            "The bookie continues unchanged; check the disk, then try again"
        )
        self.path, self.reason = path, reason


class StorageFailed(StorageError):
    """The disk failed; its contents are unknown, so only a restart can continue (rule 60)."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(
            f"{what} failed: {reason}. Nothing more is acknowledged; "
            "check the disk, then start the bookie again"
        )
        self.what, self.reason = what, reason


class JournalFailed(StorageFailed):
    pass


class FileDamaged(StorageError):
    """*path* at byte *offset* differs from what was written."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {offset}: {reason}. "
            "Do not delete it: without it the bookie would deny what it has acknowledged. Stop the "
            "bookie and run 'dlog bookie check', which reports all damage and what to do"
        )
        self.path, self.offset, self.reason = path, offset, reason


class JournalDamaged(FileDamaged):
    pass


class JournalMissing(FileDamaged):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, 0, reason)


class MarkDamaged(FileDamaged):
    pass


class EntryLogDamaged(FileDamaged):
    pass


class IndexDamaged(FileDamaged):
    pass


class CookieDamaged(FileDamaged):
    pass


class CensusDamaged(FileDamaged):
    pass
