"""A stranger was at the bookies first: they hold the ledger under another key (rule 88).

Bookies ask the metadata store before they make a ledger, so this takes a store that was silent, or
a bookie from before that. The creator's key is right by definition.
"""

from ledger.entry import access_key
from ledger.protocol import recovery_events, writer_events
from ledger.requests import Status
from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import World

STRANGER = access_key(b"stranger")


def poison(world: World, *names: str) -> None:
    for name in names:
        status, _ = world.bookie(name).storage.fence(world.ledger_id, STRANGER)
        assert status is Status.OK


def test_a_poisoned_bookie_is_replaced_and_the_ledger_written_and_closed() -> None:
    world = World(bookies=4)
    poison(world, "b3")
    writing = world.writer()

    writing.append("a", "b")
    writing.close()

    assert writing.acknowledged == [0, 1]
    assert world.fragments == {0: "b1 b2 b4"}
    assert world.metadata.last_entry == 1


def test_what_was_acknowledged_beside_a_poisoned_bookie_is_recovered_and_read() -> None:
    """Nobody is there to replace it. It counts as silent, whoever asks."""
    world = World(bookies=3)
    poison(world, "b1")
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a", "b")
    assert writing.acknowledged == [0, 1]

    recovering.recover()

    assert recovering.closed_at == 1
    reading = world.reader()
    reading.read(0, 1)
    assert reading.payloads == ["a", "b"]


def test_a_poisoned_ledger_is_closed_as_empty_and_recovered_by_anybody() -> None:
    """b1 took the entry: nobody learned so, and it is not in the ledger."""
    world = World(bookies=3)
    poison(world, "b2", "b3")
    writing, recovering = world.writer(), world.recoverer()

    writing.append("a")

    assert writing.acknowledged == []
    assert writing.failure is writer_events.WriterFailure.CLOSED_EMPTY
    assert (world.metadata.last_entry, world.metadata.length) == (-1, 0)
    recovering.recover()
    assert recovering.closed_at == -1


def test_a_recovery_that_was_faster_decides_not_the_writer() -> None:
    world = World(bookies=3)
    poison(world, "b2", "b3")
    writing, recovering = world.writer(), world.recoverer()
    swap = world.hold(Kind.CAS, by="writer")
    writing.append("a")

    recovering.recover()
    swap.release()

    assert recovering.failure is recovery_events.RecoveryFailure.WRONG_KEY
    assert writing.failure is writer_events.WriterFailure.FENCED
    assert world.metadata.last_entry is None


def test_poison_that_comes_after_an_acknowledgement_takes_nothing_away() -> None:
    """b4 replaces b3 and is poisoned, and so is b5, which replaces b2."""
    world = World(bookies=5)
    poison(world, "b4", "b5")
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a")
    assert writing.acknowledged == [0]
    world.crash("b3")

    writing.append("b")

    assert writing.acknowledged == [0, 1]
    world.restart("b3")
    recovering.recover()
    assert recovering.closed_at == 1
