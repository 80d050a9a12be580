"""Old bugs that show under some order of events only, and what an acknowledgement stands for:
#4097/#4194, #4651, rule 18.

The simulator draws such orders by the thousand; here is the one that #4194 asks for, small
enough to be read: adds, answers, failures and swaps of one writer, in an order at random, with
every acknowledged entry looked for where the metadata says it is, after each of them.
"""

from random import Random

import pytest

from ledger.quorum import Quorum, write_set
from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import World
from tests.simulation.scenarios.writer import Writer


def copies_where_recorded(world: World, entry: int) -> int:
    """Return how many bookies of the entry's recorded write set hold it."""
    metadata = world.metadata
    bookies = metadata.fragment_of(entry).bookies
    indexes = write_set(entry, metadata.quorum)
    held = [entry in world.bookies[bookies[index]].entries(world.ledger_id) for index in indexes]
    return sum(held)


def check_acknowledged(world: World, writing: Writer) -> None:
    for entry in writing.acknowledged:
        count = copies_where_recorded(world, entry)
        assert count >= world.quorum.ack, f"entry {entry} has {count} copies in {world.fragments}"


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 2, 2)])
@pytest.mark.parametrize("seed", range(15))
def test_4194_every_acknowledged_entry_is_where_the_metadata_says_at_every_moment(
    seed: int, quorum: Quorum
) -> None:
    lot = Random(seed)
    world = World(bookies=quorum.ensemble + 3, quorum=quorum)
    writing = world.writer()
    adds = {name: world.hold(Kind.ADD, at=name) for name in world.bookies}
    answers = {name: world.hold_answers(Kind.ADD, of=name) for name in world.bookies}
    swaps = [world.hold(Kind.CAS), world.hold_answers(Kind.CAS)]
    failures_left = 3

    for _ in range(60):
        held = [*adds.values(), *answers.values(), *swaps]
        under_way = [messages for messages in held if len(messages)]
        what = lot.choice(("append", "arrive", "arrive", "arrive", "arrive", "fail"))
        if what == "append" and writing.machine.last_add_pushed < 12:
            writing.append("x")
        elif what == "fail" and failures_left:
            name = lot.choice(list(adds))
            failures_left -= len(adds[name]) + len(answers[name]) > 0
            adds[name].time_out()
            answers[name].time_out()
        elif under_way:
            lot.choice(under_way).release_one()
        check_acknowledged(world, writing)
    for messages in (*adds.values(), *answers.values(), *swaps):
        messages.release()
        check_acknowledged(world, writing)

    assert writing.failure is None
    assert writing.pending == []
    check_acknowledged(world, writing)


def test_4651_a_bookie_of_no_fragment_never_counts_however_often_the_ensemble_changes() -> None:
    """b3 is replaced by b4, b4 by b5; the answers of both come after the second swap."""
    world = World(bookies=6)
    writing = world.writer()
    world.hold(Kind.ADD, at="b2")
    late = [world.hold_answers(Kind.ADD, of=name) for name in ("b3", "b4")]
    newest = world.hold(Kind.ADD, at="b5")
    writing.append("a")
    for name in ("b3", "b4"):
        broken = world.hold(Kind.ADD, at=name)
        writing.append("next")
        world.retire(name)
        broken.time_out()
    assert world.fragments == {0: "b1 b2 b5"}

    for answers in late:
        answers.release()

    assert writing.acknowledged == []
    newest.release()
    assert writing.acknowledged == [0, 1, 2]


def test_rule_18_what_a_restart_lost_was_never_acknowledged() -> None:
    """The ancestor's deferred sync acknowledged what was in memory, and a later force spoke for
    a bookie that had forgotten it in between. Here an answer means "on disk", nothing less."""
    world = World(bookies=3)
    writing = world.writer()
    journals = [world.hold(Kind.JOURNAL, at=name) for name in ("b2", "b3")]
    writing.append("a")
    assert writing.acknowledged == []  # b1 has it on disk, the others in memory

    world.crash("b2", "b3")
    world.restart("b2")
    world.restart("b3")
    for commits in journals:
        commits.release()

    assert writing.acknowledged == []
    assert world.bookie("b2").entries(world.ledger_id) == []
    assert world.bookie("b3").entries(world.ledger_id) == []
