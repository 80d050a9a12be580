"""What a simulated bookie promises: reported to the oracle as it leaves, asked for afterwards."""

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from tests.simulation.oracle import LedgerHistory

if TYPE_CHECKING:
    from tests.simulation.bookie import SimBookie
    from tests.simulation.cluster import Cluster

Answer = TypeVar("Answer", ReadAnswer, LacAnswer)

READ_ALL_BYTES: Final = 1 << 30
RANGES_MAX: Final = 3
"""Of one list: it has to go on."""


class Promises:
    """Those of one bookie, over all its lives."""

    def __init__(self, cluster: "Cluster", bookie: "SimBookie") -> None:
        self._cluster = cluster
        self._bookie = bookie
        self._name = bookie.name

    def of_add(self, run: AddRun, reply: Callable[[Status], None]) -> Callable[[Status], None]:
        """Return what is to be called with the answer to *run*, which just came in."""
        history = self._cluster.oracle.ledger(run.ledger_id)
        fenced = self._name in history.fenced
        return partial(self._answer_add, run, fenced, len(history.evictions), reply)

    def of_read(
        self, query: ReadQuery | LacQuery, reply: Callable[[Answer], None]
    ) -> Callable[[Answer], None]:
        """Return what is to be called with the answer to *query*."""
        return partial(self._answer_read, query.ledger_id, query.fence, reply)

    def of_held(
        self, query: HeldQuery, reply: Callable[[HeldAnswer], None]
    ) -> Callable[[HeldAnswer], None]:
        """Return what is to be called with the answer to *query*, which just came in."""
        evictions = len(self._cluster.oracle.ledger(query.ledger_id).evictions)
        return partial(self._answer_held, query.ledger_id, evictions, reply)

    def _answer_held(
        self,
        ledger_id: int,
        evictions: int,
        reply: Callable[[HeldAnswer], None],
        answer: HeldAnswer,
    ) -> None:
        """Repair relies on it, so whatever is listed has to survive, as if it were acknowledged."""
        oracle = self._cluster.oracle
        later = oracle.ledger(ledger_id).evictions[evictions:]
        if not any(bookie == self._name for bookie, _ in later):
            listed = [each for low, high in answer.ranges() for each in range(low, high + 1)]
            if oracle.listed(self._name, ledger_id, listed):
                self._cluster.scheduler.mark("held_before_it_was_acknowledged")
                self._promised()
        reply(answer)

    def _answer_add(
        self,
        run: AddRun,
        fenced: bool,
        evictions: int,
        reply: Callable[[Status], None],
        status: Status,
    ) -> None:
        scheduler, oracle = self._cluster.scheduler, self._cluster.oracle
        later = oracle.ledger(run.ledger_id).evictions[evictions:]
        if any(bookie == self._name for bookie, _ in later):
            scheduler.mark("add_answered_after_an_eviction")  # whoever sent it swaps in vain
        elif status is Status.OK and not run.explicit_lac:
            self._check_bytes(run)
            oracle.stored(self._name, run.ledger_id, run.entries, by_writer=not run.recovery)
            self._promised()
            lost_it = self._bookie.has_lost_files and oracle.ledger(run.ledger_id).deleted
            if fenced and not run.recovery and not lost_it:
                oracle.ledger(run.ledger_id).broken_fences.append(
                    f"{self._name} took a normal add of {list(run.entries)} after it "
                    "answered that it is fenced"
                )
        if not run.explicit_lac:
            scheduler.note(
                self._name,
                f"answers {status.name} to {'recovery ' if run.recovery else ''}add "
                f"{run.entries[0]}..{run.entries[-1]} of {run.ledger_id}",
            )
        scheduler.mark(f"add_{status.name.lower()}")
        reply(status)

    def _check_bytes(self, run: AddRun) -> None:
        """See that what is promised to be stored is what the writer sent."""
        history = self._cluster.oracle.ledger(run.ledger_id)
        start = 0
        for entry, length in zip(run.entries, run.lengths, strict=True):
            if entry >= len(history.sent):
                history.broken_promises.append(
                    f"{self._name} accepted entry {entry}, and the writer sent {len(history.sent)}"
                )
            elif bytes(run.frames[start : start + length]) != history.sent[entry]:
                history.broken_promises.append(
                    f"{self._name} accepted other bytes of entry {entry} than the writer sent"
                )
            start += length

    def _answer_read(
        self, ledger_id: int, fence: bool, reply: Callable[[Answer], None], answer: Answer
    ) -> None:
        self._cluster.scheduler.mark(f"read_{answer.status.name.lower()}")
        if fence and answer.fenced:
            history = self._cluster.oracle.ledger(ledger_id)
            if self._name not in history.fenced:
                self._cluster.scheduler.note(self._name, f"promises that {ledger_id} is fenced")
                self._cluster.scheduler.mark("fenced")
                history.fenced[self._name] = None
                self._promised()
        reply(answer)

    def _promised(self) -> None:
        if self._bookie.on_promise is not None:
            self._bookie.on_promise(self._bookie)

    def check(self) -> None:
        """Compare what the storage has now with what this bookie has ever promised."""
        for ledger_id, history in self._cluster.oracle.ledgers.items():
            if self._name in history.evicting:
                self._learn_eviction(ledger_id, history)
            key = history.recorded.access_key if history.metadata else b""
            self._cluster.oracle.changed[ledger_id] = None
            if history.deleted and self._cluster.collects:
                continue  # it may be gone from here
            rotten = self._name in history.lost_disks
            lac = self._bookie.storage.lac(ledger_id, key)
            limbo = self._bookie.storage.limbo
            knows = lac.fenced or (rotten and lac.status is Status.IO_ERROR)
            knows |= self._bookie.storage._holdings.is_fenced(ledger_id)
            knows |= limbo is not None and not limbo.takes_adds_to(ledger_id)
            knows |= self._bookie.has_lost_files and history.deleted  # nobody is misled any more
            if self._name in history.fenced and not knows:
                history.broken_fences.append(f"{self._name} forgot its fence in a restart")
            promised = [entry for entry, held in history.copies.items() if self._name in held]
            if not promised:
                continue
            if self._bookie.disk_was_replaced:
                history.broken_promises.append(f"{self._name} serves again, on an empty disk")
                continue
            query = ReadQuery(ledger_id, key, min(promised), max(promised), READ_ALL_BYTES)
            answer = self._bookie.storage.read(query)
            found = {entry: bytes(frame) for entry, frame in answer.each()}
            for entry in promised:
                if entry not in found and rotten:
                    answer = self._bookie.storage.read(ReadQuery(ledger_id, key, entry, entry))
                    if answer.status in {Status.IO_ERROR, Status.UNKNOWN}:
                        continue  # lost, and it knows: not a broken promise
                    if self._bookie.has_lost_files and not self._is_evidence(history, entry):
                        continue
                    found |= {entry: bytes(frame) for entry, frame in answer.each()}
                if found.get(entry) != history.sent[entry]:
                    fate = "other bytes of" if entry in found else "lost"
                    history.broken_promises.append(
                        f"{self._name} had promised entry {entry}, after a restart it has "
                        f"{fate} it ({answer.status.name})"
                    )

            self._check_list(ledger_id, key, history, found, query)

    def _check_list(
        self,
        ledger_id: int,
        key: bytes,
        history: LedgerHistory,
        found: Collection[int],
        query: ReadQuery,
    ) -> None:
        """See that it lists what it gives."""
        first, listed = query.first, dict[int, None]()
        while first <= query.last:
            answer = self._bookie.storage.held(
                HeldQuery(ledger_id, key, first, query.last, RANGES_MAX)
            )
            for low, high in answer.ranges():
                listed.update(dict.fromkeys(range(low, high + 1)))
            if answer.listed < first:
                return  # its index is damaged at the header
            denied = [
                each for each in found if first <= each <= answer.considered and each not in listed
            ]
            if denied:
                history.broken_promises.append(f"{self._name} gives {denied}, and denies them too")
            first = answer.listed + 1

    def _learn_eviction(self, ledger_id: int, history: LedgerHistory) -> None:
        """The power failed while it was evicted: it is there or not."""
        if ledger_id in self._bookie.storage.ledger_ids():
            del history.evicting[self._name]
        else:
            self._cluster.oracle.evicted(self._name, ledger_id)

    def _is_evidence(self, history: LedgerHistory, entry: int) -> bool:
        """Whether somebody may conclude from a "no" of this bookie where the ledger ends.

        Only of the last fragment, and only if it was named there for *entry* ever since it promised
        that: who is named again after he was replaced has to promise again, as his earlier answers
        count for nothing, and takes no add of a writer if he knows that he has lost something."""
        if not history.is_there or history.recorded.last_entry is not None:
            return False
        since = max(0, history.copies[entry][self._name] - 1)
        return entry >= history.recorded.last_fragment.first_entry and all(
            self._name in metadata.fragment_of(entry).bookies
            for _, metadata in history.metadata[since:]
        )
