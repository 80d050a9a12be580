"""Bugs of repair: of workers, of auditors, of those who empty bookies."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from bookie.autorecovery import marks, move_job, repair_io, replica_scan
from bookie.autorecovery.auditor import _Auditing
from bookie.autorecovery.marks import Ended, Marks
from bookie.autorecovery.protocol import audit, repair_plan
from bookie.autorecovery.protocol import move_job as moves
from bookie.autorecovery.protocol import repair as protocol
from bookie.autorecovery.protocol.audit import _Audit
from bookie.autorecovery.protocol.repair import _Repair, _Work
from bookie.autorecovery.repair_io import _RepairIO
from bookie.errors import BookieSuperseded
from bookie.identity import lives
from bookie.identity.cookie import Cookie
from bookie.identity.lives import Claim
from bookie.server.authorizer import CopyEvidence
from ledger import client, repair_marks, writer
from ledger.environment import Environment
from ledger.errors import BadVersion, LogError, NoSuchNode
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.log_events import now_ms
from ledger.mark import MissingReplica
from ledger.metadata import Fragment, LedgerMetadata, LedgerState, SwapRefusal
from ledger.metastore.port import ANY_VERSION, DeleteOp, MetadataStore
from ledger.protocol.answers import Found
from ledger.protocol.procedure import Action, Steps
from ledger.quorum import Quorum
from ledger.reader import LedgerReader
from ledger.registry import COOKIES
from ledger.requests import AddRun, HeldAnswer, ReadAnswer, Status
from tests.simulation.mutations.mutation import Patch, mutation

R = TypeVar("R")
HOUR_MS: Final = 3_600_000
_COPIES = "tests/bookie/server/test_copy_rights.py::test_a_copy_is_taken_if_it_is_settled_and_ours"
_BUGS = "tests/bookie/autorecovery/test_ancestors_bugs.py"
_EMPTIED = "tests/bookie/autorecovery/test_decommissioning.py"


def answered(steps: Steps[R], is_meant: Callable[[Action[Any]], bool], answer: object) -> Steps[R]:
    """Run *steps*, and answer what *is_meant* with *answer* without doing it."""
    try:
        action = next(steps)
        while True:
            if is_meant(action):
                action = steps.send(answer)
                continue
            try:
                reply = yield action
            except LogError as error:
                action = steps.throw(error)
            else:
                action = steps.send(reply)
    except StopIteration as end:
        result: R = end.value
        return result


# Readers, while copies move.


@mutation(
    "own bug",
    repair=True,
    test="tests/ledger/test_what_is_believed.py"
    "::test_what_members_say_counts_only_while_the_metadata_name_them",
)
def bounds_what_was_acknowledged_by_who_left(patch: Patch) -> None:
    """A reader that sleeps between the metadata and the answers believes bookies that have evicted
    the ledger."""

    async def read_last_stored(self: LedgerReader) -> EntryId:
        metadata, _ = await self._environment.ledgers.read(self.ledger_id, fresh=True)
        self._known.learn(metadata)
        if metadata.last_entry is not None:
            return metadata.last_entry
        last = metadata.last_fragment
        answers = await self._ask_all(last.bookies)
        self._check(answers)
        return EntryId(max(answers.last_entry, last.first_entry - 1))

    patch.set(LedgerReader, "read_last_stored", read_last_stored)


# Marks.


@mutation("own bug", repair=True)
def swallows_marks_that_add_nothing(patch: Patch) -> None:
    """What they are about, the worker that is at the ledger may have seen or not."""
    honest = repair_marks.mark_ledger

    async def mark_ledger(
        store: MetadataStore,
        ledger_id: LedgerId,
        missing: Iterable[MissingReplica],
        *,
        urgent: bool = False,
    ) -> bool:
        wanted = tuple(missing)
        found = await repair_marks.read_mark(store, ledger_id)
        if found is not None and found[0].merged(wanted, urgent=urgent) is found[0]:
            return False
        return await honest(store, ledger_id, wanted, urgent=urgent)

    for module in (marks, client, writer):
        patch.set(module, "mark_ledger", mark_ledger)


# Workers: what is copied, and where.


@mutation("plan of repair", repair=True)
def copies_the_open_fragment(patch: Patch) -> None:
    """What members have of it is taken for all that there is."""
    honest = _Repair._concerned

    def concerned(self: _Repair, metadata: LedgerMetadata) -> list[_Work]:
        last = metadata.last_fragment
        works = honest(self, metadata)
        if metadata.settled_end(last) is None and self._situation.concerns(last):
            gone = {
                index: bookie in self._situation.registered
                for index, bookie in enumerate(last.bookies)
                if self._situation.must_go(bookie, last)
            }
            works.append(_Work(last, last.first_entry, EntryId(last.first_entry), gone))
        return works

    patch.set(_Repair, "_concerned", concerned)


@mutation("plan of repair", repair=True)
def swaps_before_the_last_copy_is_durable(patch: Patch) -> None:
    honest = _Repair._copy

    def copy(self: _Repair, work: _Work, made: repair_plan.CopyRange) -> Steps[None]:
        def is_last(action: Action[Any]) -> bool:
            if not isinstance(action, protocol.SendFrames):
                return False
            after = action.entries[-1] + 1
            return made.next_from(after, self._situation.metadata.quorum) is None

        return answered(honest(self, work, made), is_last, Status.OK)

    patch.set(_Repair, "_copy", copy)


@mutation("plan of repair", repair=True)
def writes_over_what_others_wrote(patch: Patch) -> None:
    """The swap is not judged by what is there now."""
    honest = _RepairIO._write_swap

    async def write_swap(self: _RepairIO, action: protocol.WriteSwap) -> int | None:
        try:
            return await honest(self, action)
        except BadVersion:
            _, version = await self._environment.ledgers.read(self._ledger_id)
            return await write_swap(self, replace(action, version=version))

    patch.set(_RepairIO, "_write_swap", write_swap)


@mutation("plan of repair", repair=True)
def compares_ensembles_and_not_keys(patch: Patch) -> None:
    """Whatever fragment has the same bookies is changed with it."""
    honest = LedgerMetadata.replaced

    def replaced(
        self: LedgerMetadata, first_entry: int, index: int, old: BookieId, new: BookieId
    ) -> LedgerMetadata | SwapRefusal:
        changed = honest(self, first_entry, index, old, new)
        if isinstance(changed, SwapRefusal):
            return changed
        fragment = next(each for each in self.fragments if each.first_entry == first_entry)
        bookies = (*fragment.bookies[:index], new, *fragment.bookies[index + 1 :])
        fragments = tuple(
            Fragment(each.first_entry, bookies) if each.bookies == fragment.bookies else each
            for each in self.fragments
        )
        return replace(self, fragments=fragments)

    patch.set(LedgerMetadata, "replaced", replaced)


@mutation("bk#596", repair=True)
def takes_a_member_for_the_target(patch: Patch) -> None:
    honest = Environment.replacements

    def replacements(
        self: Environment,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        indexes: Sequence[int],
        exclude: Collection[BookieId],
    ) -> tuple[tuple[int, BookieId], ...]:
        nobody = tuple(BookieId(f"nobody-{at}") for at in range(len(ensemble)))
        return honest(self, quorum, nobody, indexes, exclude)

    def replaced(
        self: LedgerMetadata, first_entry: int, index: int, old: BookieId, new: BookieId
    ) -> LedgerMetadata | SwapRefusal:
        fragment = next(each for each in self.fragments if each.first_entry == first_entry)
        if self.settled_end(fragment) is None or fragment.bookies[index] != old:
            return SwapRefusal.OTHER_MEMBER
        bookies = (*fragment.bookies[:index], new, *fragment.bookies[index + 1 :])
        fragments = tuple(
            Fragment(each.first_entry, bookies) if each is fragment else each
            for each in self.fragments
        )
        return replace(self, fragments=fragments)

    patch.set(Environment, "replacements", replacements)
    patch.set(LedgerMetadata, "replaced", replaced)


@mutation("plan of repair", repair=True)
def copies_what_the_place_does_not_hold(patch: Patch) -> None:
    patch.set(repair_plan, "holds", lambda _index, _entry_id, _quorum: True)


@mutation("bk#3917", repair=True)
def leaves_the_last_entry_out(patch: Patch) -> None:
    honest = _Repair._concerned

    def concerned(self: _Repair, metadata: LedgerMetadata) -> list[_Work]:
        works = honest(self, metadata)
        if metadata.state is LedgerState.CLOSED:
            for work in works:
                if work.last == metadata.last_entry:
                    work.last -= 1
        return works

    patch.set(_Repair, "_concerned", concerned)


@mutation("bk#3692", repair=True)
def leaves_empty_fragments_to_a_bookie_that_goes(patch: Patch) -> None:
    honest = _Repair._mend

    def mend(self: _Repair, work: _Work) -> Steps[bool]:
        return (yield from honest(self, work)) if not work.is_empty else True

    patch.set(_Repair, "_mend", mend)


@mutation("plan of repair", repair=True)
def unmarks_in_whatever_version(patch: Patch) -> None:
    honest = Marks.end

    async def end(self: Marks, ledger_id: LedgerId, _version: int) -> Ended:
        return await honest(self, ledger_id, ANY_VERSION)

    patch.set(Marks, "end", end)


@mutation("bk#1197", repair=True)
def takes_a_time_out_for_missing_entries(patch: Patch) -> None:
    listed, read = replica_scan._Listing.heard, replica_scan._Reading.heard

    def heard(self: replica_scan._Listing, answer: HeldAnswer) -> None:
        if answer.status is Status.UNREACHABLE:
            answer = HeldAnswer(Status.NO_SUCH_LEDGER)
        listed(self, answer)

    def heard_too(self: replica_scan._Reading, found: Found) -> None:
        if found.status is Status.UNREACHABLE:
            found = replace(found, status=Status.NO_SUCH_LEDGER)
        read(self, found)

    patch.set(replica_scan._Listing, "heard", heard)
    patch.set(replica_scan._Reading, "heard", heard_too)


@mutation("plan of repair", repair=True)
def copies_what_came_unverified(patch: Patch) -> None:
    def unverified(answer: ReadAnswer, _ledger_id: int, _mac: object) -> Found:
        frames = dict(answer.each())
        headers: dict[int, Any] = dict.fromkeys(frames)
        return Found(answer.status, headers, frames, answer.considered, None, -1, answer.fenced)

    patch.set(repair_io, "verified", unverified)


@mutation(
    "plan of repair",
    drawn=False,
    test="tests/bookie/autorecovery/test_replicating.py"
    "::test_where_no_ensemble_is_better_what_a_member_lacks_is_copied_all_the_same",
)
def unmarks_what_has_no_better_place(patch: Patch) -> None:
    """A mark for two reasons is worked off for one of them."""
    patch.set(repair_plan.Situation, "lacks_entries", lambda *_: False)


@mutation(
    "bk#1908",
    drawn=False,
    test=f"{_BUGS}::test_1908_a_ledger_with_an_entry_that_is_lost_everywhere_fills_no_disk",
)
def copies_what_it_can_before_it_knows_of_the_rest(patch: Patch) -> None:
    """No simulator loses an entry for good: that is what it looks for."""
    honest = repair_plan.choose

    def choose(*arguments: Any, **options: Any) -> repair_plan.RepairPlan:
        chosen = honest(*arguments, **options)
        first, last, quorum, shares = arguments
        copies = [
            copy
            for index in options["moving"]
            for copy in repair_plan._copies_for(
                index, first, last, quorum, shares, options["moving"]
            )[0]
        ]
        rest = [copy for copy in chosen.copies if copy.index not in options["moving"]]
        return replace(chosen, copies=(*rest, *copies))

    patch.set(protocol, "choose", choose)


# Workers and writers.


@mutation("plan of repair", repair=True)
def counts_the_grace_from_the_lock(patch: Patch) -> None:
    patch.set(repair_plan.Situation, "marked_since_ms", lambda *_: now_ms())


@mutation("plan of repair", repair=True)
def fences_without_grace(patch: Patch) -> None:
    patch.set(repair_plan.Situation, "marked_since_ms", lambda *_: -HOUR_MS)


@mutation("plan of repair", repair=True)
def fences_though_there_is_no_spare(patch: Patch) -> None:
    honest = _Repair._settle_last

    def settle_last(self: _Repair) -> Steps[None]:
        def is_choice(action: Action[Any]) -> bool:
            return isinstance(action, protocol.ChooseReplacements)

        nobody = ((0, BookieId("nobody")),)
        return answered(honest(self), is_choice, nobody)

    patch.set(_Repair, "_settle_last", settle_last)


# Auditors.


@mutation("bk#1197, plan of repair", repair=True)
def asks_who_is_there_before_it_reads_the_ledgers(patch: Patch) -> None:
    honest = _Audit._pass_over

    def pass_over(self: _Audit) -> Steps[bool]:
        def is_question(action: Action[Any]) -> bool:
            return isinstance(action, audit.ReadMembership)

        return answered(honest(self), is_question, self.__dict__["seen"])

    learn = _Audit._learn

    def remember(self: _Audit, seen: audit.BookiesKnown, now: float) -> None:
        self.__dict__["seen"] = seen
        learn(self, seen, now)

    patch.set(_Audit, "_learn", remember)
    patch.set(_Audit, "_pass_over", pass_over)


@mutation("bk#4419", repair=True)
def knows_only_whom_it_has_seen(patch: Patch) -> None:
    honest = _Auditing._see

    async def see(self: _Auditing) -> audit.BookiesKnown:
        seen = await honest(self)
        met = self.__dict__.setdefault("met", set())
        met |= seen.registered
        return replace(seen, known=seen.known & met)

    patch.set(_Auditing, "_see", see)


# Bookies that are emptied, and names.


@mutation(
    "plan of repair",
    drawn=False,
    test=f"{_EMPTIED}::test_once_it_is_stopped_its_name_is_retired_last",
)
def forgets_a_name_after_one_pass(patch: Patch) -> None:
    """Takes a client that was late within one pass, and never after it."""
    patch.set(moves, "CLEAN_PASSES", 1)


@mutation("plan of repair", repair=True)
def forgets_a_name_first(patch: Patch) -> None:
    honest = move_job._MoveIO.perform

    async def perform(self: move_job._MoveIO, action: Action[Any]) -> object:
        answer = await honest(self, action)
        if isinstance(action, moves.LookAtBookie) and isinstance(answer, moves.BookieSeen):
            seen, bookie = answer, action.bookie
            if seen.is_known and seen.is_leaving and not seen.is_registered:
                await honest(self, moves.Retire(bookie, seen.version))
        return answer

    patch.set(move_job._MoveIO, "perform", perform)


@mutation(
    "own, rule 78",
    repair=True,
    test=f"{_EMPTIED}::test_the_name_of_an_emptied_bookie_is_never_free_again",
)
def frees_the_name_of_a_bookie_that_left(patch: Patch) -> None:
    """As it was before: an empty bookie takes the name while the one of before sleeps."""

    def deleted(path: str, _value: bytes, version: int) -> DeleteOp:
        return DeleteOp(path, version)

    patch.set(move_job, "SetOp", deleted)


@mutation(
    "own, rule 78",
    repair=True,
    test="tests/bookie/identity/test_lives.py::test_a_bookie_ends_when_its_name_is_retired",
)
def a_bookie_serves_on_that_woke_under_a_retired_name(patch: Patch) -> None:
    honest = lives.look

    async def look(store: Any, claim: Claim) -> Claim:
        try:
            return await honest(store, claim)
        except BookieSuperseded:
            return Claim(claim.cookie, (await store.get(claim.path)).version)

    patch.set(lives, "look", look)


@mutation("bk#4812", repair=True)
def a_retired_name_serves_again(patch: Patch) -> None:
    """A bookie without data takes the name of one whose data were given up."""
    from bookie.identity import stamp

    honest = stamp._check

    async def check(store: Any, directories: Any, bookie: str, *rest: Any) -> Any:
        path = f"{COOKIES}/{bookie}"
        try:
            found = await store.get(path)
        except NoSuchNode:
            return await honest(store, directories, bookie, *rest)
        if Cookie.decode(found.value).is_retired:
            await store.delete(path)
        return await honest(store, directories, bookie, *rest)

    patch.set(stamp, "_check", check)


@mutation(
    "decision 63",
    drawn=False,
    test="tests/bookie/autorecovery/test_replicating.py"
    "::test_a_bookie_that_is_to_be_emptied_since_it_was_chosen_is_not_swapped_in",
)
def swaps_in_who_was_forgotten(patch: Patch) -> None:
    """Takes a worker that sleeps between its choice and the swap while just the bookie that it
    chose is emptied and forgotten."""
    honest = protocol.WriteSwap

    def swap(metadata: LedgerMetadata, version: int, _: int) -> protocol.WriteSwap:
        return honest(metadata, version, ANY_VERSION)

    patch.set(protocol, "WriteSwap", swap)


# Bookies: which copies they take of whom.


@mutation("decision 88", repair=True)
def takes_whatever_a_flag_calls_a_copy(patch: Patch) -> None:
    """One bookie's certificate puts records into all logs."""
    patch.set(CopyEvidence, "why_not", lambda *_: "")


@mutation("decision 88", repair=True)
def takes_copies_beside_the_repair_of_another_certificate(patch: Patch) -> None:
    honest = CopyEvidence.why_not

    def why_not(self: CopyEvidence, run: AddRun, bookie: str, who: str) -> str:
        lock = self.lock
        if lock is None:
            return honest(self, run, bookie, who)
        named = replace(lock, identities=(who,), targets=(bookie,))
        return honest(replace(self, lock=named), run, bookie, who)

    patch.set(CopyEvidence, "why_not", why_not)


@mutation("decision 88", repair=True)
def takes_a_last_add_confirmed_of_who_may_not_append(patch: Patch) -> None:
    """No bookie can know that it is true; one that is not makes a log that nobody can open."""
    honest = CopyEvidence.why_not

    def why_not(self: CopyEvidence, run: AddRun, bookie: str, who: str) -> str:
        return "" if run.explicit_lac else honest(self, run, bookie, who)

    patch.set(CopyEvidence, "why_not", why_not)


@mutation("decision 88", repair=True, test=_COPIES, drawn=False)
def takes_copies_of_what_is_not_settled(patch: Patch) -> None:
    """No repair sends any, and no lock names a forger."""
    patch.set(CopyEvidence, "_why_not_settled", lambda *_: "")
