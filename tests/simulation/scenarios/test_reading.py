"""Old bugs about readers and lost messages, as stories: BK-710/#4613/pulsar#13693, #1067,
#3466, rule 1.

BK-710 needs somebody who re-replicates; `world.move` does by hand what that later part will do.
#3466 (an entry missing under packet loss, never explained) is the simulator's daily bread; here
every single message of a short life is lost once.
"""

import pytest

from ledger.entry import access_key, encode_frame
from ledger.ids import EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.protocol import read as protocol
from ledger.quorum import Quorum
from ledger.requests import AddRun, Status
from tests.simulation.invariants import INVARIANTS
from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import MOVED, World


def test_bk_710_a_reader_follows_entries_that_were_moved_while_it_was_idle() -> None:
    """All bookies it knows of are gone one by one; the metadata names where the entries went."""
    world = World(bookies=6, forgive=MOVED)
    writing, reading = world.writer(), world.reader()
    writing.append("a", "b")
    writing.close()
    for out, into in (("b1", "b4"), ("b2", "b5"), ("b3", "b6")):
        world.move(range(2), out=out, into=into)
    world.crash("b1", "b2", "b3")

    reading.read(0, 1, wait_s=1.0)
    world.pass_time(5.0)

    assert reading.payloads == ["a", "b"]


def test_bk_710_an_entry_that_no_replica_has_is_an_error_not_the_end() -> None:
    world = World(bookies=3)
    writing, reading = world.writer(), world.reader()
    writing.append("a", "b")
    writing.close()
    reading.read(0, 0)
    assert reading.payloads == ["a"]
    world.crash("b1", "b2", "b3")

    reading.read(1, 1)
    world.pass_time(60.0)

    assert reading.failure is protocol.ReadFailure.UNAVAILABLE


def test_1067_a_replica_that_hangs_gets_company() -> None:
    world = World(bookies=3)
    writing, reading = world.writer(), world.reader()
    writing.append("a")
    hanging = world.hold(Kind.READ, at="b1")

    reading.read(0, 0, wait_s=10.0)
    world.pass_time(20.0)

    assert reading.payloads == ["a"]
    assert len(hanging) == 1


def test_a_waiting_reader_is_woken_by_the_explicit_lac_of_an_idle_writer() -> None:
    world = World(bookies=3)
    writing, reading = world.writer(), world.reader()
    lac = world.hold(Kind.LAC)
    reading.read(0, 10, wait_s=0.9)
    writing.append("a")
    assert reading.payloads is None  # it is stored, but that it is confirmed is not known

    lac.release()

    assert reading.payloads == ["a"]


def test_a_waiting_reader_is_woken_by_a_fence_and_learns_the_end() -> None:
    world = World(bookies=3)
    world.writer()
    reading, recovering = world.reader(), world.recoverer()
    reading.read(0, 10, wait_s=30.0)

    recovering.recover()
    world.pass_time(1.0)

    assert reading.payloads == []
    assert reading.metadata.last_entry == -1


def _life(lose_number: int | None) -> World:
    """A writer, a reader beside it, a recovery, a reader of it all; one message is lost."""
    world = World(bookies=5)
    world.post.lose_number = lose_number
    writing, recovering, tailing = world.writer(), world.recoverer(), world.reader("tailing")
    writing.append("a", "b")
    tailing.read(0, 1, wait_s=1.0)
    world.pass_time(3.0)
    writing.append("c")
    world.pass_time(3.0)
    recovering.recover()
    world.pass_time(30.0)
    writing.append("d")
    world.pass_time(30.0)

    assert writing.pending == []
    assert recovering.closed_at is not None
    assert recovering.closed_at >= max(writing.acknowledged)
    assert "".join(_read_all(world)) == "abc"
    return world


def _read_all(world: World) -> list[str]:
    reading, payloads = world.reader("last"), list[str]()
    while len(payloads) <= (world.metadata.last_entry or 0):
        reading.read(len(payloads), 1000)  # a read ends where a fragment does
        world.pass_time(5.0)
        assert reading.payloads, f"nothing of {world.metadata} from entry {len(payloads)} on"
        payloads += reading.payloads
    return payloads


@pytest.mark.slow
def test_3466_whichever_one_message_is_lost_nothing_acknowledged_is() -> None:
    messages = len(_life(None).post.delivered)
    assert messages > 30
    for number in range(messages):
        _life(number)


@pytest.mark.parametrize("quorum", [Quorum(5, 2, 2), Quorum(5, 2, 1)])
def test_rule_1_entries_beyond_31_bits_are_where_their_stripe_says(quorum: Quorum) -> None:
    """Computed with 32 bits, the write set of entry 2**31 + i would be another, or negative."""
    # Nobody wrote the two thousand million entries before: no invariant fits this history.
    world = World(bookies=quorum.ensemble, quorum=quorum, forgive=tuple(INVARIANTS))
    begin = (1 << 31) - 5
    bookies = tuple(world.bookies)
    for entry in range(begin, begin + 10):
        frame = encode_frame(
            ledger_id=world.ledger_id,
            entry_id=entry,
            last_add_confirmed=begin - 1,
            length=entry,
            payload=str(entry - begin).encode(),
        )
        run = AddRun(world.ledger_id, access_key(b""), (entry,), (len(frame),), frame)
        for i in range(quorum.write):
            bookie = world.bookies[bookies[(entry + i) % quorum.ensemble]]
            assert bookie.storage.add(run)[0] is Status.OK
    fragments = (Fragment(EntryId(0), bookies), Fragment(EntryId(begin), bookies))
    world.create_ledger(
        LedgerMetadata(quorum=quorum, fragments=fragments, access_key=access_key(b""))
    )
    recovering, reading = world.recoverer(), world.reader()

    recovering.recover()
    world.pass_time(5.0)
    reading.metadata = world.metadata
    payloads = []
    for entry in range(begin, begin + 10):
        reading.read(entry, entry)
        payloads += reading.payloads or []

    assert recovering.closed_at == begin + 9
    assert payloads == list("0123456789")
