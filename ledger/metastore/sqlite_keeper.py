"""The thread that keeps an embedded store alive: heartbeats, other sessions' end, changes.

One step, every `POLL_S`:
    1. renew the session if it was lost
    2. look whether somebody committed something (`PRAGMA data_version`, a read of shared
       memory); if so read which paths, and whether our session was ended by another
    3. beat, when that is due and 2 went well
    4. end the sessions of dead processes, now and then

What it finds it reports to the store by `KeeperEvents`, which must be quick and thread-safe. An
error of the disk leaves no trace here but missing heartbeats: then the lease runs out
(`ledger.metastore.port`). Damage is reported, too. The next step tries again.
"""

import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import Final, Protocol

from ledger.errors import DamagedMetadata
from ledger.metastore.session import trusted_s
from ledger.metastore.sqlite_files import Database, OtherSession, OwnSession, boot_id
from ledger.metastore.sqlite_format import reporting_damage
from ledger.metastore.sqlite_tree import SqlTree

POLL_S: Final = 0.03
_REAP_S: Final = 0.2
_BEATS_PER_TIMEOUT: Final = 10
_STOP_ATTEMPTS_MAX: Final = 10
_BUSY_S: Final = 0.1
"""Short: a heartbeat must not wait behind somebody's long write."""


class KeeperEvents(Protocol):
    def began(self, session_id: str, at: float) -> None:
        """A session exists since *at*."""

    def proven(self, session_id: str, at: float) -> None:
        """The session was alive at *at*."""

    def ended(self, session_id: str) -> None:
        """The session is no more."""

    def changed(self, paths: Sequence[str] | None) -> None:
        """These paths changed; None: any may have."""

    def damaged(self, error: DamagedMetadata) -> None:
        """The store is damaged."""

    def stopped(self) -> None:
        """The thread has done all it will do."""


class SessionKeeper:
    def __init__(self, database: Database, events: KeeperEvents, session_timeout_s: float) -> None:
        self._database = database
        self._events = events
        self._session_timeout_s = session_timeout_s
        self._boot = boot_id()
        self._tree: SqlTree | None = None
        self._data_version = -1
        self._last_change = -1
        self._own: OwnSession | None = None
        self._last_beat = 0.0
        self._last_reap = 0.0
        self._others: dict[str, OtherSession] = {}
        self._given_up = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metastore-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def give_up(self, session_id: str) -> None:
        """End this session, if it is the present one, and begin another. From any thread."""
        self._given_up = session_id

    def stop(self) -> None:
        """Let the thread end its session and itself. Does not wait."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    with reporting_damage(str(self._database.path)):
                        self._step(time.monotonic())
                except (sqlite3.Error, OSError):
                    self._disconnect()
                except DamagedMetadata as error:
                    self._disconnect()
                    self._events.damaged(error)
                self._stopped.wait(POLL_S)
            self._end_session_at_stop()
        finally:
            if self._own is not None:
                self._own.abandon()
            self._disconnect()
            for other in self._others.values():
                other.close()
            self._events.stopped()

    def _step(self, now: float) -> None:
        self._database.check_present()
        tree = self._connect()
        if self._own is not None and self._must_renew(self._own.session_id, now):
            self._end_own_session(tree)
        if self._own is None:
            self._begin_session(tree, now)
        self._read_changes(tree)
        if now - self._last_beat >= self._session_timeout_s / _BEATS_PER_TIMEOUT:
            self._beat(now)
        if now - self._last_reap >= _REAP_S:
            self._reap(tree, now)
            self._last_reap = now

    def _connect(self) -> SqlTree:
        if self._tree is None:
            self._tree = self._database.connect(timeout_s=_BUSY_S)
            self._data_version = -1
        if self._last_change < 0:
            self._last_change = self._tree.last_change()
        return self._tree

    def _disconnect(self) -> None:
        if self._tree is not None:
            self._tree.close()
            self._tree = None

    def _must_renew(self, session_id: str, now: float) -> bool:
        """True iff the owner gave the session up, or would have, had it not been stopped."""
        overdue = now - self._last_beat >= trusted_s(self._session_timeout_s)
        return overdue or session_id == self._given_up

    def _begin_session(self, tree: SqlTree, now: float) -> None:
        own = OwnSession(self._database)
        entered = False
        try:
            tree.add_session(own.session_id, self._boot, self._session_timeout_s)
            entered = True
        finally:
            if not entered:
                own.close()
        self._own, self._last_beat = own, now
        self._events.began(own.session_id, now)

    def _end_own_session(self, tree: SqlTree) -> None:
        if self._own is not None:
            self._events.ended(self._own.session_id)
            self._end_session(tree, self._own.session_id)
            self._own.close()
            self._own = None

    def _end_session_at_stop(self) -> None:
        for _ in range(_STOP_ATTEMPTS_MAX):
            try:
                self._database.check_present()
                with reporting_damage(str(self._database.path)):
                    self._end_own_session(self._connect())
                return
            except (sqlite3.Error, OSError, DamagedMetadata):
                self._disconnect()

    def _end_session(self, tree: SqlTree, session_id: str) -> None:
        tree.end_session(session_id)
        self._data_version = -1  # our own commits do not change it: read what they did

    def _read_changes(self, tree: SqlTree) -> None:
        data_version = tree.data_version()
        if data_version == self._data_version:
            return
        changes = tree.changes_after(self._last_change)
        if changes:
            gap = changes[0][0] != self._last_change + 1
            paths = list(dict.fromkeys(path for _, path in changes))
            self._events.changed(None if gap else paths)
            self._last_change = changes[-1][0]
        if self._own is not None and not tree.has_session(self._own.session_id):
            self._events.ended(self._own.session_id)
            self._own.close()
            self._own = None
        self._data_version = data_version

    def _beat(self, now: float) -> None:
        if self._own is not None:
            self._own.beat(now)
            self._last_beat = now
            self._events.proven(self._own.session_id, now)

    def _reap(self, tree: SqlTree, now: float) -> None:
        sessions = {row[0]: row for row in tree.sessions()}
        for session_id in [known for known in self._others if known not in sessions]:
            self._others.pop(session_id).close()
        for session_id, boot, timeout_s in sessions.values():
            if self._own is not None and session_id == self._own.session_id:
                continue
            path = self._database.session_path(session_id)
            other = self._others.get(session_id)
            if other is None:
                other = self._others[session_id] = OtherSession(path)
            if boot != self._boot or other.is_dead(now=now, timeout_s=timeout_s):
                self._end_session(tree, session_id)
                path.unlink(missing_ok=True)
