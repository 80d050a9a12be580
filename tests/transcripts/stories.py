"""The main stories of the protocol, each a short script in the hand-held world.

`transcript` plays one and returns every event and every effect of its machines as a line:

    # ...                 what the script does, in words
    writer <- event       what the machine of a client is told
    writer -> effect      what it says that must be done
    metadata = version    what is stored now

Bookies are b1 to b5; answers come in the order of questions unless the script holds them.
"""

from collections.abc import Callable
from typing import Final

from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import World

Story = Callable[[World], None]


def append_and_ack(world: World) -> None:
    """The writer sends to all three bookies and confirms with the second answer, in order.

    When nothing is in flight any more it publishes its last add confirmed. A reader that
    waits at a bookie hears of it. Then the writer closes."""
    writer, reader = world.writer(), world.reader()
    say(world, "the reader waits for entry 0; the writer has sent nothing yet")
    reader.read(0, 9, wait_s=1.0)
    say(world, "one entry; b3 is slow")
    slow = world.hold_answers(Kind.ADD, of="b3")
    writer.append("a")
    say(world, "two more; both are on b1 and wait for a second bookie")
    seconds = world.hold_answers(Kind.ADD, of="b2")
    writer.append("b", "c")
    say(world, "b2 answers")
    seconds.release()
    say(world, "b3's answers come late and change nothing")
    slow.release()
    say(world, "the writer closes")
    writer.close()


def ensemble_change(world: World) -> None:
    """b3 fails with two entries in flight. The new fragment begins right behind the last
    confirmed entry; nothing is confirmed until the metadata store has recorded it."""
    writer = world.writer()
    say(world, "entry 0 is confirmed by all")
    writer.append("a")
    say(world, "entries 1 and 2 are sent; only b3's connection breaks, the others are slow")
    slow = [world.hold_answers(Kind.ADD, of=name) for name in ("b1", "b2")]
    broken = world.hold(Kind.ADD, at="b3")
    writer.append("b", "c")
    swap = world.hold(Kind.CAS)
    broken.time_out()
    say(world, "b1 and b2 answer while the compare-and-swap is under way: still nothing")
    for answers in slow:
        answers.release()
    say(world, "the compare-and-swap is done")
    swap.release()


def fence_and_recover(world: World) -> None:
    """The writer's last entry reached b1 alone. Recovery finds it, copies it, byte for byte,
    and closes the ledger behind it. The writer, which is alive, can add nothing more."""
    writer, recoverer = world.writer(), world.recoverer()
    say(world, "entry 0 is confirmed; entry 1 reaches b1 only")
    writer.append("a")
    late = [world.hold(Kind.ADD, at=name) for name in ("b2", "b3")]
    writer.append("b")
    say(world, "somebody recovers the ledger")
    recoverer.recover()
    say(world, "the writer's add reaches b2 and b3 now")
    for adds in late:
        adds.release()


def two_recoverers(world: World) -> None:
    """Both see another part of the ledger, because entry 0 is on b1 alone. The first one that
    writes CLOSED decides; the other adopts what it wrote, whatever it had found itself."""
    writer = world.writer()
    first, second = world.recoverer("r1"), world.recoverer("r2")
    say(world, "entry 0 reaches b1 only; its writer dies")
    for name in ("b2", "b3"):
        world.hold(Kind.ADD, at=name)
    writer.append("a")
    writer.die()
    say(world, "r1 cannot reach b1: it finds nothing, and is slow to write that")
    cut = [world.hold(kind, at="b1", by="r1") for kind in (Kind.FENCE, Kind.RECOVERY_READ)]
    swaps = world.hold(Kind.CAS, by="r1")
    first.recover()
    swaps.release_one()
    say(world, "r2 reaches b1 and b3: it finds entry 0, keeps it, and is faster")
    world.hold_answers(Kind.RECOVERY_READ, of="b2", to="r2")
    second.recover()
    say(world, "r1's compare-and-swap arrives, and loses")
    swaps.release()
    assert len(cut[0]) == 1


STORIES: Final[dict[str, Story]] = {
    "append-and-ack": append_and_ack,
    "ensemble-change": ensemble_change,
    "fence-and-recover": fence_and_recover,
    "two-recoverers": two_recoverers,
}


def say(world: World, what: str) -> None:
    """Write down a stage direction."""
    world.tell("")
    world.tell(f"# {what}")


def transcript(name: str) -> str:
    """Play story *name* from the start; return its text."""
    story, world = STORIES[name], World(bookies=5)
    story(world)
    about = [f"# {line.strip()}".rstrip() for line in (story.__doc__ or "").splitlines()]
    return "\n".join([*about, *world.story]) + "\n"
