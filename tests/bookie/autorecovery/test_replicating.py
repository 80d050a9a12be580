"""The repair of one ledger, action by action."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest

from bookie.autorecovery.protocol import repair as protocol
from bookie.autorecovery.protocol.repair import SWAP_TRIES_MAX, RepairEnd, RepairOutcome
from ledger.errors import BadVersion, LogError, NoSuchLedger, RecoveryFailed
from ledger.ids import LedgerId
from ledger.mark import Reason
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.procedure import Action
from ledger.quorum import Quorum
from ledger.requests import Status
from tests.bookie.autorecovery.repair_world import LOST, Running, World, ledger, names, repair
from tests.procedures import Next, Returned, Script

ActionT = TypeVar("ActionT", bound=Action[Any])
STRIPED: Final = Quorum(5, 3, 2)
HOUR_MS: Final = 3_600_000


def lost_member() -> World:
    return World(ledger((0, "abc"), last=9), "bcde").lacks("a")


def two_lost_members() -> World:
    return World(ledger((0, "abc"), last=9), "cdefg").lacks("ab")


def striped() -> World:
    return World(ledger((0, "abcde"), last=22, quorum=STRIPED), "acdexy").lacks("b")


def short_tail() -> World:
    """The last entries were in flight to a bookie that died and came back."""
    world = World(ledger((0, "abc"), last=9), "abcd").lacks("b", Reason.DAMAGED)
    world.of(names("b")[0]).difference_update({4, 8, 9})
    return world


def several_fragments() -> World:
    """The same bookies twice, and an empty fragment at the end."""
    fragments = (0, "abc"), (4, "abd"), (6, "abc"), (10, "abe")
    return World(ledger(*fragments, last=9), "bcdef").lacks("a")


def open_ledger() -> World:
    metadata = ledger((0, "abc"), (5, "acd"), last=None, state=LedgerState.OPEN)
    return World(metadata, "bcdef", end=9).lacks("a")


def in_recovery() -> World:
    metadata = ledger((0, "abc"), last=None, state=LedgerState.IN_RECOVERY)
    return World(metadata, "bcd", end=9).lacks("a")


def emptied() -> World:
    return World(ledger((0, "abc"), last=9), "abcd", leaving="a").lacks("a", Reason.DECOMMISSIONING)


def empty_ledger() -> World:
    return World(ledger((0, "abc"), last=-1), "bcd").lacks("a")


def rotten_source() -> World:
    world = lost_member()
    world.rot(names("b")[0], 4)
    return world


def deleted() -> World:
    world = World(ledger((0, "abc"), last=9), "bcd").lacks("a")
    world.metadata, world.end = None, -1
    return world


CASES: Final = (
    lost_member, two_lost_members, striped, short_tail, several_fragments, open_ledger,
    in_recovery, emptied, empty_ledger, rotten_source, deleted,
)  # fmt: skip

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


def metadata_of(world: World) -> LedgerMetadata:
    assert world.metadata is not None
    return world.metadata


def effects_of(case: Callable[[], World]) -> int:
    world = case()
    repair(world)
    return len(world.written)


@each_case
def test_a_repair_leaves_every_copy_where_it_belongs_and_no_mark(case: Callable[[], World]) -> None:
    world = case()
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert world.mark is None
    assert not world.locked
    if world.metadata is not None:
        assert world.is_whole()


@each_case
def test_a_worker_that_stops_after_any_effect_is_followed_by_another(
    case: Callable[[], World],
) -> None:
    for steps in range(1, effects_of(case) + 1):
        world = case()
        Running(world).steps(steps)
        world.lose_lock()  # it went with the session
        if world.mark is not None:
            assert repair(world, eager=True) == RepairEnd(RepairOutcome.DONE), steps
        assert_healed(world)


@each_case
@pytest.mark.parametrize("lose", ["effect", "reply"])
def test_a_worker_whose_effect_or_its_reply_is_lost_gets_it_done_in_the_end(
    case: Callable[[], World], lose: str
) -> None:
    for steps in range(effects_of(case)):
        world = case()
        running = Running(world).steps(steps)
        running.step(lose)
        running.end()
        world.lose_lock()  # giving it back may be what was lost
        world.now_ms += HOUR_MS
        if world.mark is not None:
            assert repair(world) == RepairEnd(RepairOutcome.DONE), steps
        assert_healed(world)


@each_case
def test_two_workers_at_one_ledger_do_no_harm(case: Callable[[], World]) -> None:
    """The session of the first one ended in the middle; it slept, and then goes on."""
    for steps in range(1, effects_of(case) + 1):
        world = case()
        sleeper = Running(world, worker=1).steps(steps)
        world.lose_lock()
        if world.mark is not None:
            assert repair(world, eager=True) == RepairEnd(RepairOutcome.DONE), steps
        sleeper.end()
        assert_healed(world)


def test_the_entries_of_a_lost_member_are_copied_once_and_one_place_changes() -> None:
    world = lost_member()
    repair(world)
    assert metadata_of(world).fragments[0].bookies == names("dbc")
    assert world.copied == 10


def test_of_a_striped_ledger_only_what_the_index_holds_is_copied() -> None:
    world = striped()
    lacking = len(world.of(names("b")[0]))
    repair(world)
    assert world.copied == lacking


def test_a_bookie_that_came_back_with_everything_is_unmarked_without_a_copy() -> None:
    world = World(ledger((0, "abc"), last=9), "abcd").lacks("a")
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert (world.copied, world.version) == (0, 0)


def test_what_a_bookie_that_is_there_lacks_is_copied_to_it_and_nothing_else() -> None:
    world = short_tail()
    repair(world)
    assert (world.copied, world.version) == (3, 0)


def test_what_was_repaired_in_place_is_looked_at_again() -> None:
    world = short_tail()
    repair(world)
    last_send = len(world.written) - 1 - world.written[::-1].index("SendFrames")
    assert world.written[last_send + 1 :].count("Look") == 3


def test_what_was_moved_is_known_by_its_compare_and_swap() -> None:
    world = lost_member()
    repair(world)
    assert world.written.count("ReadLedger") == 1
    assert world.written[-2:] == ["WriteSwap", "DeleteMark"]


def test_without_a_bookie_to_copy_to_nothing_is_read_or_copied() -> None:
    world = World(ledger((0, "abc"), last=9), "bc").lacks("a")
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert "Look" not in world.written
    assert world.mark is not None
    assert world.mark.wants_bookie


def test_a_lost_entry_of_one_fragment_does_not_keep_the_others_from_being_moved() -> None:
    world = several_fragments()
    for bookie in names("bd"):
        world.of(bookie).discard(4)
    assert repair(world).outcome is RepairOutcome.DEFERRED
    ensembles = [fragment.bookies for fragment in metadata_of(world).fragments]
    assert [names("a")[0] in bookies for bookies in ensembles] == [False, True, False, False]


def test_a_bookie_that_does_not_answer_is_unsure_and_never_missing() -> None:
    world = short_tail()
    world.silent = {names("a")[0], names("c")[0]}
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert world.mark is not None
    assert world.mark.lost == ()
    assert world.copied == 0


def test_a_rotten_entry_of_the_source_is_read_elsewhere_and_made_good_too() -> None:
    world = lost_member()
    for bookie, entry_id in zip(names("bc"), (4, 7), strict=True):
        world.rot(bookie, entry_id)
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert_healed(world)


def test_a_bookie_marked_for_damage_is_read_thoroughly_and_gets_what_is_rotten() -> None:
    world = World(ledger((0, "abc"), last=9), "abcd").lacks("b", Reason.DAMAGED)
    world.rot(names("b")[0], 0, 5, 9)
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert world.copied == 3
    assert_healed(world)


def test_a_bookie_that_is_lost_is_looked_at_by_what_others_say_they_hold() -> None:
    world = lost_member()
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert world.read == 10  # what is copied, and nothing to look


def test_nothing_is_swapped_in_that_refused_a_copy() -> None:
    world = lost_member()
    world.silent = {names("d")[0]}
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert world.version == 0
    assert world.mark is not None
    assert "bookie d: a copy was refused: UNREACHABLE" in world.mark.deferred_why


def test_two_different_whole_frames_of_an_entry_are_reported_and_nothing_is_written() -> None:
    world = lost_member()
    world.other = {names("c")[0]: {4}}
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert (world.version, world.of(names("d")[0])) == (0, {0, 1, 2})
    assert world.mark is not None
    assert world.mark.differing == ((4, 4),)
    assert "b and c have different frames of entry 4" in world.mark.deferred_why


def test_a_bookie_that_lacks_an_entry_gets_none_of_two_different_ones() -> None:
    world = short_tail()
    world.other = {names("c")[0]: {8}}
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert 8 not in world.of(names("b")[0])


def test_the_first_look_at_the_metadata_needs_no_more_than_the_lock_and_later_ones_do() -> None:
    world = short_tail()
    read: list[bool] = []
    do = world.do

    def noting(action: Action[Any]) -> object:
        if isinstance(action, protocol.ReadLedger):
            read.append(action.fresh)
        return do(action)

    world.do = noting  # type: ignore[method-assign]
    repair(world)
    assert read == [False, True]


def misplaced() -> World:
    return World(ledger((0, "abc"), (5, "abx"), last=9), "abcxy").lacks("abc", Reason.MISPLACED)


def test_a_misplaced_bookie_is_exchanged_and_is_a_source_until_the_swap() -> None:
    world = misplaced()
    for bookie in names("bc"):
        world.of(bookie).discard(3)
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    ensembles = [fragment.bookies for fragment in metadata_of(world).fragments]
    assert ensembles == [names("xbc"), names("abx")]
    assert world.of(names("x")[0]).issuperset(range(5))


def test_nothing_is_moved_or_looked_at_where_no_ensemble_is_better() -> None:
    world = misplaced()
    world.there = "abc"
    world.metadata = ledger((0, "abc"), last=9)
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert (world.version, world.copied) == (0, 0)
    assert "Look" not in world.written


def test_where_no_ensemble_is_better_what_a_member_lacks_is_copied_all_the_same() -> None:
    world = World(ledger((0, "abc"), last=9), "abc").lacks("a", Reason.MISPLACED)
    world.lacks("b", Reason.MISSING)
    world.of(names("b")[0]).discard(4)
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert world.is_whole()


def test_nobody_is_exchanged_while_a_source_is_away() -> None:
    world = misplaced()
    world.there = "bcxy"
    repair(world)
    assert "ChooseBetter" not in world.written
    assert world.version == 0


def test_the_pauses_between_attempts_double_up_to_an_hour() -> None:
    world = World(ledger((0, "abc"), last=9), "bc").lacks("a")
    pauses = []
    for _ in range(12):
        repair(world, eager=True)
        assert world.mark is not None
        pauses.append((world.mark.not_before_ms - world.now_ms) // 1000)
    assert pauses[:4] == [10, 20, 40, 80]
    assert pauses[-1] == 3600


def test_a_mark_is_left_alone_until_its_time() -> None:
    world = World(ledger((0, "abc"), last=9), "bc").lacks("a")
    repair(world)
    world.there = "bcd"
    assert repair(world).outcome is RepairOutcome.DEFERRED
    world.now_ms += 10_000
    assert repair(world) == RepairEnd(RepairOutcome.DONE)


def test_a_mark_that_waits_for_a_bookie_is_taken_up_when_one_has_come() -> None:
    world = World(ledger((0, "abc"), last=9), "bc").lacks("a")
    repair(world)
    world.there = "bcd"
    assert Running(world).end().outcome is RepairOutcome.DEFERRED
    assert Running(world, rejoined="bcd").end() == RepairEnd(RepairOutcome.DONE)


def test_a_mark_that_waits_for_no_bookie_is_left_alone_though_one_has_come() -> None:
    world = lost_member()
    world.silent = {names("d")[0]}
    repair(world)
    before = len(world.written)
    assert Running(world, rejoined="bcde").end().outcome is RepairOutcome.DEFERRED
    assert world.written[before:] == ["TakeLock", "ReadMark", "Unlock"]
    world.there = "abcde"  # the lost one is back
    assert Running(world, rejoined="abcde").end() == RepairEnd(RepairOutcome.DONE)


def test_a_mark_that_grew_during_the_work_is_not_deleted_before_that_is_done_too() -> None:
    world = World(ledger((0, "abc"), last=9), "bcdef").lacks("a")
    sleeper = Running(world).steps(5)
    world.lacks("c")
    world.there = "bdef"
    assert sleeper.end() == RepairEnd(RepairOutcome.DONE)
    assert_healed(world)
    assert {*names("ac")}.isdisjoint(metadata_of(world).fragments[0].bookies)


def test_an_open_fragment_is_left_to_its_writer_for_the_grace() -> None:
    world = open_ledger()
    assert world.mark is not None
    world.mark = None
    world.grace_ms = 30_000
    world.lacks("a", since_ms=world.now_ms)
    assert repair(world, grace_ms=30_000).outcome is RepairOutcome.DEFERRED
    assert not world.fenced
    assert world.mark is not None
    assert (world.mark.attempts, world.mark.not_before_ms) == (0, world.now_ms + 30_000)
    assert names("a")[0] not in metadata_of(world).fragments[0].bookies
    world.now_ms += 30_000
    assert repair(world, grace_ms=30_000) == RepairEnd(RepairOutcome.DONE)
    assert world.fenced


def test_nobody_is_fenced_as_long_as_there_is_no_spare_bookie() -> None:
    metadata = ledger((0, "abc"), last=None, state=LedgerState.OPEN)
    world = World(metadata, "bc", end=9).lacks("a")
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert not world.fenced
    assert world.mark is not None
    assert world.mark.wants_bookie


def test_an_open_ledger_whose_writer_has_left_the_lost_bookie_is_not_fenced() -> None:
    metadata = ledger((0, "abc"), (5, "bcd"), last=None, state=LedgerState.OPEN)
    world = World(metadata, "bcde", end=9).lacks("a")
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert not world.fenced
    assert world.is_whole()


def test_a_bookie_that_is_to_be_emptied_is_read_from_when_nobody_else_has_an_entry() -> None:
    world = emptied()
    for bookie in names("bc"):
        world.of(bookie).discard(5)
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert world.is_whole()


def test_a_bookie_that_is_to_be_emptied_is_out_of_empty_fragments_too() -> None:
    metadata = ledger((0, "abc"), (5, "dbc"), (10, "abd"), last=9)
    world = World(metadata, "abcde", leaving="a").lacks("a", Reason.DECOMMISSIONING)
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    ensembles = [fragment.bookies for fragment in metadata_of(world).fragments]
    assert [names("a")[0] in bookies for bookies in ensembles] == [False, False, False]


def test_a_bookie_that_was_to_be_emptied_and_is_kept_is_not_moved_from() -> None:
    world = emptied()
    world.leaving = ""
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert world.version == 0


def test_a_bookie_that_is_to_be_emptied_since_it_was_chosen_is_not_swapped_in() -> None:
    world = lost_member()
    running = Running(world)
    while world.written[-1:] != ["SendFrames"]:
        running.step()
    [chosen] = [bookie for bookie in names("de") if world.of(bookie)]
    world.leaving, world.leaving_version = chosen[-1], 1
    assert running.end() == RepairEnd(RepairOutcome.DONE)
    assert chosen not in metadata_of(world).fragments[0].bookies
    assert world.is_whole()


def test_another_workers_ledger_is_left_alone() -> None:
    world = lost_member()
    world.locked_by = 99
    assert repair(world) == RepairEnd(RepairOutcome.BUSY)
    assert world.written == ["TakeLock"]


def assert_healed(world: World) -> None:
    assert world.mark is None
    if world.metadata is not None:
        assert world.is_whole()


def test_who_lacks_entries_itself_may_take_the_place_of_who_leaves() -> None:
    """Else a mark that names all bookies would be in its own way for ever."""
    metadata = ledger((0, "abc"), (5, "abd"), last=9)
    world = World(metadata, "abcd", leaving="a").lacks("a", Reason.DECOMMISSIONING)
    world.lacks("bcd", Reason.MISSING)
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert [set(each.bookies) for each in metadata_of(world).fragments] == [set(names("bcd"))] * 2
    assert world.is_whole()


def test_who_has_left_a_ledger_is_not_kept_by_what_else_that_lacks() -> None:
    """Its decommission waits until no mark names it."""
    metadata = ledger((0, "abc"), (5, "bcd"), last=9)
    world = World(metadata, "abcde", leaving="a").lacks("a", Reason.DECOMMISSIONING)
    for bookie in names("bcd"):
        world.of(bookie).discard(7)
    world.lacks("d", Reason.DAMAGED)
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert names("a")[0] not in metadata_of(world).fragments[0].bookies
    assert world.mark is not None
    assert world.mark.bookies == frozenset(names("d"))


def test_who_missed_an_entry_and_comes_back_gets_it_at_once() -> None:
    world = World(ledger((0, "abc"), last=9), "ac").lacks("b", Reason.MISSING)
    world.of(names("b")[0]).discard(4)
    assert repair(world).outcome is RepairOutcome.DEFERRED
    world.there = "abc"
    assert Running(world).end().outcome is RepairOutcome.DEFERRED  # nobody has said that it came
    assert Running(world, rejoined="abc").end() == RepairEnd(RepairOutcome.DONE)
    assert world.is_whole()


# What follows from single answers.


RepairScript = Script[RepairEnd]


def _up_to(world: World, kind: type[ActionT]) -> tuple[RepairScript, ActionT]:
    """Return a repair that wants an action of *kind* for the first time, and that action."""
    script = Script(protocol.repair(protocol.RepairConfig(open_fragment_grace_ms=30_000)))
    return script, _on_to(script, script.begin(), world, kind)


def _on_to(
    script: RepairScript, action: Next[RepairEnd], world: World, kind: type[ActionT]
) -> ActionT:
    """Do *action* and what follows, up to one of *kind*."""
    while not isinstance(action, kind):
        assert isinstance(action, Action)
        action = script.answer(world.do(action))
    return action


def _conflict(script: RepairScript, metadata: LedgerMetadata, version: int) -> Next[RepairEnd]:
    """Let the swap under way fail, because others have written *metadata* meanwhile."""
    action = script.fail(BadVersion("ledger", version - 1))
    assert isinstance(action, protocol.ReadMetadata)
    return script.answer((metadata, version))


def test_a_source_that_considers_nothing_is_not_read_for_ever() -> None:
    script, asked = _up_to(lost_member(), protocol.ReadFrames)
    nothing = protocol.FramesRead(Status.OK, (), asked.first - 1)
    assert isinstance(script.answer(nothing), protocol.ReadLedger)  # and reads all, next time


def test_a_source_that_refuses_defers_the_repair_and_says_why() -> None:
    script, asked = _up_to(lost_member(), protocol.ReadFrames)
    action = script.answer(protocol.FramesRead(Status.WRONG_KEY, (), asked.first - 1))
    assert isinstance(action, protocol.WriteMark)
    assert "a source refused: WRONG_KEY" in action.mark.deferred_why


def test_a_source_that_has_not_what_it_was_read_to_have_defers_the_repair() -> None:
    world = lost_member()
    script, asked = _up_to(world, protocol.ReadFrames)
    action = script.answer(protocol.FramesRead(Status.OK, (), asked.first - 1))
    asked = _on_to(script, action, world, protocol.ReadFrames)
    action = script.answer(protocol.FramesRead(Status.OK, (), asked.first - 1))
    assert isinstance(action, protocol.WriteMark)
    assert "a source has not any more what it had" in action.mark.deferred_why


def test_a_swap_of_a_closed_ledger_that_was_changed_is_made_with_copies_sent_anew() -> None:
    """The new bookie may have offered what it got for eviction, and got rid of it."""
    world = lost_member()
    script, swap = _up_to(world, protocol.WriteSwap)
    action = _conflict(script, metadata_of(world), swap.version + 1)
    assert isinstance(action, protocol.ReadLedger)


def test_a_swap_of_an_open_ledger_that_was_changed_is_tried_again_so_many_times() -> None:
    world = open_ledger()
    script, swap = _up_to(world, protocol.WriteSwap)
    for tries in range(1, SWAP_TRIES_MAX):
        action = _conflict(script, metadata_of(world), swap.version + tries)
        assert isinstance(action, protocol.WriteSwap)
        assert action.version == swap.version + tries
    action = _conflict(script, metadata_of(world), swap.version + SWAP_TRIES_MAX)
    assert isinstance(action, protocol.ReadLedger)


def test_each_fragment_has_as_many_tries_of_its_swap() -> None:
    metadata = ledger((0, "abc"), (5, "abd"), (7, "bcd"), last=None, state=LedgerState.OPEN)
    world = World(metadata, "bcdef", end=9).lacks("a")
    script, swap = _up_to(world, protocol.WriteSwap)
    for _ in range(1, SWAP_TRIES_MAX):
        action = _conflict(script, metadata_of(world), swap.version + 1)
        assert isinstance(action, protocol.WriteSwap)
        swap = action
    world.version = swap.version
    swap = _on_to(script, script.answer(world.do(swap)), world, protocol.WriteSwap)
    action = _conflict(script, metadata_of(world), swap.version + 1)
    assert isinstance(action, protocol.WriteSwap)


def test_a_swap_without_an_answer_may_be_written_and_is_looked_at_again() -> None:
    script, _ = _up_to(lost_member(), protocol.WriteSwap)
    assert isinstance(script.fail(LOST), protocol.ReadLedger)


@pytest.mark.parametrize("error", [LOST, NoSuchLedger(LedgerId(1))], ids=["lost", "deleted"])
def test_a_swap_of_which_nothing_can_be_read_is_looked_at_again(error: LogError) -> None:
    script, swap = _up_to(open_ledger(), protocol.WriteSwap)
    assert isinstance(script.fail(BadVersion("ledger", swap.version)), protocol.ReadMetadata)
    assert isinstance(script.fail(error), protocol.ReadLedger)


def test_where_somebody_else_has_put_another_bookie_nothing_is_swapped() -> None:
    world = open_ledger()
    script, swap = _up_to(world, protocol.WriteSwap)
    (a, e) = names("ae")
    changed = metadata_of(world).replaced(0, 0, a, e)
    assert isinstance(changed, LedgerMetadata)
    assert isinstance(_conflict(script, changed, swap.version + 1), protocol.ReadLedger)


def test_a_mark_that_grew_before_it_was_deferred_is_left_as_it_is_now() -> None:
    world = World(ledger((0, "abc"), last=9), "bc").lacks("a")
    script, _ = _up_to(world, protocol.WriteMark)
    assert script.answer(False) == protocol.Unlock()
    end = script.answer(None)
    assert end == Returned(RepairEnd(RepairOutcome.DEFERRED, "it was marked again meanwhile"))


def test_a_metadata_store_that_takes_no_mark_breaks_the_repair_off() -> None:
    world = World(ledger((0, "abc"), last=9), "bc").lacks("a")
    script, _ = _up_to(world, protocol.WriteMark)
    assert script.fail(LOST) == protocol.Unlock()
    assert script.answer(None) == Returned(RepairEnd(RepairOutcome.BROKEN_OFF, str(LOST)))


def test_a_repair_ends_though_its_lock_cannot_be_given_back() -> None:
    world = World(ledger((0, "abc"), last=9), "bc").lacks("a")
    script, _ = _up_to(world, protocol.Unlock)
    end = script.fail(LOST)
    assert isinstance(end, Returned)
    assert end.value.outcome is RepairOutcome.DEFERRED


def test_a_lock_that_is_lost_defers_the_copy_and_deletes_no_mark() -> None:
    world = lost_member()
    script, _ = _up_to(world, protocol.SendFrames)
    action = script.fail(protocol.LockLost())
    assert isinstance(action, protocol.WriteMark)
    assert "the lock went with its session" in action.mark.deferred_why
    script, _ = _up_to(lost_member(), protocol.DeleteMark)
    assert script.fail(protocol.LockLost()) == protocol.Unlock()
    end = script.answer(None)
    assert isinstance(end, Returned)
    assert end.value.outcome is RepairOutcome.BROKEN_OFF


def test_a_recovery_that_is_refused_defers_the_repair_and_says_why() -> None:
    script, _ = _up_to(in_recovery(), protocol.RecoverLedger)
    action = script.fail(RecoveryFailed(LedgerId(1), "too few bookies"))
    assert isinstance(action, protocol.WriteMark)
    assert "too few bookies" in action.mark.deferred_why


def test_a_source_that_leaves_an_entry_out_is_not_copied_from() -> None:
    script, asked = _up_to(lost_member(), protocol.ReadFrames)
    gap = protocol.FramesRead(Status.OK, (asked.first, asked.first + 2), asked.first + 2)
    assert isinstance(script.answer(gap), protocol.ReadLedger)


def test_a_swap_that_is_found_to_be_written_is_not_written_again() -> None:
    """Its reply was lost."""
    script, swap = _up_to(open_ledger(), protocol.WriteSwap)
    action = _conflict(script, swap.metadata, swap.version + 1)
    assert not isinstance(action, protocol.WriteSwap)


def test_a_marked_bookie_that_is_away_and_not_lost_is_waited_for() -> None:
    """Others are asked meanwhile, and what they say is not taken for its answer."""
    world = World(ledger((0, "abc"), last=9), "bc").lacks("a", Reason.MISSING)
    world.lacks("b", Reason.MISSING)
    world.of(names("b")[0]).discard(4)
    finish = repair(world)
    assert finish.outcome is RepairOutcome.DEFERRED
    assert "a cannot be asked now" in finish.why
    assert 4 in world.of(names("b")[0])
    assert world.copied == 1


def test_a_fragment_of_one_entry_is_copied_before_it_is_swapped() -> None:
    world = World(ledger((0, "abc"), last=0), "bcd").lacks("a")
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert world.copied == 1
    assert world.is_whole()


def test_a_ledger_that_is_not_marked_any_more_is_given_back() -> None:
    world = World(ledger((0, "abc"), last=9), "abc")
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert not world.locked


def test_a_fragment_that_has_nowhere_to_go_does_not_keep_the_next_one() -> None:
    world = World(ledger((0, "abc"), (5, "abx"), last=9), "bc").lacks("a")
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert [each.bookies for each in metadata_of(world).fragments] == [names("abc"), names("cbx")]


def test_a_fragment_that_stands_well_does_not_keep_the_next_one() -> None:
    world = World(ledger((0, "abx"), (5, "abc"), last=9), "abcxy").lacks("abc", Reason.MISPLACED)
    assert repair(world) == RepairEnd(RepairOutcome.DONE)
    assert [each.bookies for each in metadata_of(world).fragments] == [names("abx"), names("xbc")]


def test_a_fragment_of_which_nobody_can_be_asked_does_not_keep_the_next_one() -> None:
    world = World(ledger((0, "abc"), (5, "dbc"), last=9), "bcd").lacks("ad", Reason.MISSING)
    world.of(names("d")[0]).discard(7)
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert 7 in world.of(names("d")[0])


def test_where_no_marked_bookie_can_be_asked_nobody_is() -> None:
    world = World(ledger((0, "abc"), last=9), "bc").lacks("a", Reason.MISSING)
    assert repair(world).outcome is RepairOutcome.DEFERRED
    assert "Look" not in world.written


def test_what_has_no_entries_lacks_none_of_a_bookie_that_is_away() -> None:
    world = World(ledger((0, "abc"), last=-1), "bc").lacks("a", Reason.MISSING)
    assert repair(world) == RepairEnd(RepairOutcome.DONE)


def test_a_marked_bookie_that_does_not_say_what_it_has_is_named() -> None:
    world = World(ledger((0, "abc"), last=9), "abc").lacks("b", Reason.MISSING)
    world.silent = set(names("b"))
    assert "bookie b did not say what it has" in repair(world).why


def test_after_an_attempt_in_vain_nothing_is_believed_that_was_not_read() -> None:
    world = World(ledger((0, "abc"), last=9), "abc").lacks("b", Reason.MISSING)
    assert world.mark is not None
    assert not _up_to(world, protocol.Look)[1].thorough
    world.mark = world.mark.deferred("in vain", now_ms=0)
    world.lose_lock()
    assert _up_to(world, protocol.Look)[1].thorough


def test_a_mark_waits_from_when_the_ledger_was_read() -> None:
    world = World(ledger((0, "abc"), last=9), "bc").lacks("a")
    script, action = _up_to(world, protocol.ReadLedger)
    world.now_ms += HOUR_MS
    written = _on_to(script, action, world, protocol.WriteMark)
    assert written.mark.not_before_ms > world.now_ms
