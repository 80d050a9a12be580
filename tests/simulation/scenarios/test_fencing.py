"""Old bugs about fencing, as stories: #2614, BK-101, BK-135, #208, rules 33 and 35.

BK-n and #n are of the public trackers of Apache BookKeeper, rules are those of docs/rules.md.
Of #208 (disk full) only a memtable that takes no normal add is here; full disks are with the
tests of the storage and of the read-only mode.
"""

from bookie.storage.config import StorageConfig
from ledger.entry import access_key
from ledger.protocol import recovery_events, writer_events
from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import World


def test_2614_an_add_that_arrives_after_recovery_decided_is_not_acknowledged() -> None:
    """Recovery reads must fence too. b3 is never reached by a fence, only by a read.

    If that read did not fence it, b3 would say "no such entry" and then take the add."""
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    adds_1, adds_3 = world.hold(Kind.ADD, at="b1"), world.hold(Kind.ADD, at="b3")
    writing.append("only b2 has it")
    world.hold(Kind.FENCE, at="b3")
    world.hold_answers(Kind.RECOVERY_READ, of="b2")

    recovering.recover()
    adds_1.release()
    adds_3.release()

    assert recovering.closed_at == -1
    assert writing.acknowledged == []
    assert writing.failure is writer_events.WriterFailure.FENCED


def test_2614_exactly_the_bookies_that_must_be_fenced_are_enough() -> None:
    """Qw - Qa + 1 = 2 fences of 3: the writer cannot find Qa others, so recovery may read."""
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a")
    cut_fences = world.hold(Kind.FENCE, at="b3")
    cut_reads = world.hold(Kind.RECOVERY_READ, at="b3")
    late_adds = [world.hold(Kind.ADD, at=name) for name in ("b1", "b2")]
    writing.append("b")  # reaches b3 alone, which nobody fences

    recovering.recover()
    for adds in late_adds:
        adds.release()

    assert recovering.closed_at == 0
    assert writing.acknowledged == [0]
    assert writing.failure is writer_events.WriterFailure.FENCED
    assert len(cut_fences) == 1
    assert len(cut_reads) > 0
    assert not world.bookie("b3").is_fenced(world.ledger_id)


def test_rule_33_a_no_is_not_answered_before_the_fence_is_durable() -> None:
    """b1 says "no such entry" to recovery only once its fence cannot be forgotten.

    It crashes before, forgets, and takes the writer's add, which b1 and b3 acknowledge. If
    its "no" had been answered the ledger would have been closed without that entry."""
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    far = [world.hold(Kind.FENCE, at="b3"), world.hold(Kind.RECOVERY_READ, at="b3")]
    commits = world.hold(Kind.JOURNAL, at="b1")
    recovering.recover()
    assert recovering.closed_at is None

    world.crash("b1")
    commits.release()
    world.restart("b1")
    refusals = world.hold_answers(Kind.ADD, of="b2")
    writing.append("a")
    assert writing.acknowledged == [0]

    world.pass_time(1.0)  # recovery asks b1 again

    assert recovering.closed_at == 0
    assert len(refusals) == 1
    assert len(far[0]) == 1


def test_rule_33_a_fence_that_was_answered_survives_power_loss() -> None:
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    world.hold(Kind.FENCE, at="b3")
    world.hold(Kind.RECOVERY_READ, at="b3")
    recovering.recover()
    assert recovering.closed_at == -1

    world.crash("b1", "b2")
    world.restart("b1")
    world.restart("b2")
    writing.append("from a writer that slept through it")

    assert writing.acknowledged == []
    assert writing.failure is writer_events.WriterFailure.FENCED


def test_rule_35_a_fence_of_a_ledger_never_written_here_survives_alone() -> None:
    """Its journal record carries the key, so that it can be replayed without any other."""
    world = World(bookies=3)
    writing = world.writer()
    world.recoverer().recover()
    assert world.bookie("b1").entries(world.ledger_id) == []

    world.crash("b1")
    world.restart("b1")
    world.bookie("b1").checkpoint()
    world.crash("b1")
    world.restart("b1")

    assert world.bookie("b1").is_fenced(world.ledger_id)
    writing.append("a")
    assert writing.acknowledged == []


def test_bk_101_a_writer_that_was_silent_for_long_cannot_write_behind_its_successor() -> None:
    world = World()
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a", "b")

    recovering.recover()
    writing.append("c")

    assert recovering.closed_at == 1
    assert writing.acknowledged == [0, 1]
    assert writing.failure is writer_events.WriterFailure.FENCED


def test_bk_101_the_no_of_a_bookie_that_did_not_fence_counts_for_nothing() -> None:
    """b1 cannot fence. Its "no" and b3's must not end the ledger: b1 may yet take the add."""
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    world.bookie("b1").can_fence = False
    late = world.hold(Kind.ADD, at="b1")
    world.hold(Kind.ADD, at="b3")
    writing.append("a")
    slow = world.hold_answers(Kind.RECOVERY_READ, of="b2")

    recovering.recover()
    late.release()

    assert writing.acknowledged == [0]
    assert recovering.closed is None
    slow.release()
    assert recovering.closed_at == 0


def test_bk_135_a_wrong_password_does_not_fence() -> None:
    world = World()
    writing = world.writer(password=b"right")
    writing.append("a")
    stranger = world.recoverer("stranger", password=b"wrong")

    stranger.recover()

    assert stranger.failure is recovery_events.RecoveryFailure.WRONG_KEY
    assert not any(b.is_fenced(world.ledger_id, b"right") for b in world.bookies.values())


def test_bk_135_a_wrong_password_does_not_add() -> None:
    world = World()
    writing = world.writer(password=b"right")
    writing.append("a")

    writing.key = access_key(b"wrong")
    writing.append("forged")

    assert writing.failure is writer_events.WriterFailure.WRONG_KEY
    assert world.bookie("b1").entries(world.ledger_id, b"right") == [0]


def test_208_bookies_that_are_full_can_be_fenced_and_the_ledger_be_closed() -> None:
    """Normal adds find no room any more; fences and recovery adds have room of their own."""
    full = StorageConfig(journal_preallocate_bytes=4096, memtable_bytes_max=10_000)
    world = World(bookies=3, storage=full)
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a")
    cut = [world.hold(Kind.ADD, at="b2"), world.hold(Kind.ADD, at="b3")]
    writing.append("only b1 has this one, a long one" * 100)
    for name in ("b1", "b2", "b3"):
        world.bookie(name).fill()
    for adds in cut:
        adds.release()
    assert writing.pending == [1]  # b2 and b3 say that they are too busy

    recovering.recover()

    assert recovering.closed_at == 1
    assert world.bookie("b2").entries(world.ledger_id) == [0, 1]
