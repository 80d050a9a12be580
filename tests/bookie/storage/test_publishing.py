"""A checkpoint takes the lock of adds for short turns only, and nobody misses anything then."""

from types import TracebackType
from typing import Self

import pytest

from bookie.index.format import LedgerHeader
from bookie.storage import checkpoint
from bookie.storage.checkpoint import header_of
from bookie.storage.ledger_table import LedgerRecord
from ledger.requests import Status
from tests.bookie.promises import Promises, entries_of, run_of
from tests.simulation.disk import Loss, SimDisk

LEDGERS = range(1, 8)


class Peeking:
    """The lock of the holdings; whoever lets it go looks at all that was promised."""

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._looking = False
        self.turns = 0
        self.is_held = False

    def __enter__(self) -> Self:
        assert not self.is_held
        self.is_held = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.is_held = False
        if not self._looking:
            self._looking = True
            self.turns += 1
            self._look()
            self._looking = False

    def _look(self) -> None:
        for ledger_id in LEDGERS:
            found = entries_of(self._promises.storage, ledger_id, bytes_max=1 << 20)
            assert found == self._promises.sent[ledger_id]
        twice = run_of(1, *self._promises.sent[1])
        assert self._promises.storage.add(twice)[0] is Status.OK, "these bytes are here"
        new = max(self._promises.sent[2]) + 1
        assert self._promises.add(2, new) is Status.OK


def test_between_any_two_turns_of_a_checkpoint_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "_PUBLISHED_MAX", 2)
    disk = SimDisk(0)
    promises = Promises(disk)
    promises.open()
    for turn in range(2):
        for ledger_id in LEDGERS:
            promises.add(ledger_id, *range(10 * turn, 10 * turn + 5))
        promises.commit()
        lock = Peeking(promises)
        with monkeypatch.context() as patch:
            patch.setattr(promises.storage._holdings, "lock", lock)
            patch.setattr(promises.storage, "_lock", lock)
            promises.checkpoint()
        assert lock.turns >= 2 + len(LEDGERS) // 2
    promises.commit()
    promises.checkpoint()
    disk.crash(Loss.LOST)
    promises.open()
    promises.check()


def test_headers_are_made_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    promises = Promises(SimDisk(0))
    promises.open()
    for ledger_id in LEDGERS:
        promises.add(ledger_id, 0)
    promises.commit()
    made: list[int] = []

    def watched(record: LedgerRecord) -> LedgerHeader:
        assert not promises.storage._holdings.lock.locked()
        made.append(record.ledger_id)
        return header_of(record)

    monkeypatch.setattr(checkpoint, "header_of", watched)
    promises.checkpoint()
    assert made == list(LEDGERS)


def test_what_is_promised_while_a_checkpoint_writes_is_written_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk(0)
    promises = Promises(disk)
    promises.open()
    for ledger_id in LEDGERS:
        promises.add(ledger_id, 0)
    promises.commit()
    met: list[int] = []

    def meanwhile(record: LedgerRecord) -> LedgerHeader:
        header = header_of(record)
        if not met:
            promises.add(record.ledger_id, 5)
            promises.fence(record.ledger_id)
            promises.commit()
        met.append(record.ledger_id)
        return header

    monkeypatch.setattr(checkpoint, "header_of", meanwhile)
    promises.checkpoint()
    promises.add(3, 9)
    promises.commit()
    promises.checkpoint()
    disk.crash(Loss.LOST)
    promises.open()
    assert 5 in promises.stored[met[0]]
    assert met[0] in promises.fenced
    promises.check()
