"""Old bugs about what a bookie says of its entries, as stories: #2908/#2909, #2946,
#3783 -> #4163.

#2946 (last entry of a ledger wrong) is here for the storage as it is; the location index of
later parts brings a property test of its own. #3783 needs somebody who re-replicates;
`world.move` does by hand what that later part will do.
"""

import random

import pytest

from bookie.storage.engine import BookieStorage
from ledger.entry import access_key, encode_frame, parse_header
from ledger.metadata import LedgerState
from ledger.protocol import recovery_events
from ledger.requests import AddRun, Status
from tests.simulation.disk import Loss, SimDisk
from tests.simulation.scenarios.bookie import SMALL
from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import MOVED, World


def test_2908_a_log_file_that_is_missing_is_an_error_and_never_a_no() -> None:
    """All three bookies lost the file that the index points into. Recovery must not truncate."""
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    world.hold(Kind.LAC).lose()
    writing.append("a")
    for bookie in world.bookies.values():
        bookie.checkpoint()
        logs = [name for name in bookie.disk.list("entrylog") if name.endswith(".log")]
        assert len(logs) == 1
        bookie.disk.remove(f"entrylog/{logs[0]}")

    recovering.recover()
    world.pass_time(60.0)

    assert recovering.failure is recovery_events.RecoveryFailure.UNDECIDED
    assert world.metadata.state is LedgerState.IN_RECOVERY


def test_2909_one_log_file_that_is_missing_costs_nothing_but_a_second_look() -> None:
    world = World(bookies=3)
    writing, recovering, reading = world.writer(), world.recoverer(), world.reader()
    world.hold(Kind.LAC).lose()
    writing.append("a")
    damaged = world.bookie("b1")
    damaged.checkpoint()
    damaged.disk.remove(f"entrylog/{damaged.disk.list('entrylog')[0]}")

    recovering.recover()
    reading.read(0, 0)
    world.pass_time(60.0)

    assert recovering.closed_at == 0
    assert reading.payloads == ["a"]


@pytest.mark.parametrize("seed", range(20))
def test_2946_a_bookie_knows_its_last_entry_and_its_lac_across_checkpoints_and_crashes(
    seed: int,
) -> None:
    """Against a model that is a list: adds in any order, checkpoints, restarts."""
    lot = random.Random(seed)
    disk, key, ledger_id = SimDisk(seed), access_key(b""), 1
    storage = BookieStorage.open(disk, SMALL)
    added: dict[int, int] = {}
    for _ in range(40):
        match lot.choice(("add", "add", "add", "checkpoint", "crash")):
            case "add":
                entry = lot.randrange(200)
                lac = added.get(entry, lot.randrange(-1, entry) if entry else -1)
                frame = encode_frame(
                    ledger_id=ledger_id,
                    entry_id=entry,
                    last_add_confirmed=lac,
                    length=entry,
                    payload=b"x",
                )
                run = AddRun(ledger_id, key, (entry,), (len(frame),), frame)
                assert storage.add(run)[0] is Status.OK
                storage.commit()
                added[entry] = lac
            case "checkpoint":
                storage.checkpoint()
            case "crash":
                disk.crash(Loss.LOST)
                storage = BookieStorage.open(disk, SMALL)
        answer = storage.lac(ledger_id, key)
        if added:
            assert answer.last_entry == max(added)
            assert parse_header(answer.lac_proof).last_add_confirmed == max(added.values())


def test_4163_a_fenced_bookie_takes_the_copies_of_a_re_replication() -> None:
    world = World(bookies=4, forgive=MOVED)
    writing, recovering, reading = world.writer(), world.recoverer(), world.reader()
    writing.append("a", "b")
    recovering.recover()
    target = world.bookie("b4")
    target.storage.fence(world.ledger_id, access_key(b""))
    target.storage.commit()

    world.move(range(2), out="b3", into="b4")
    world.crash("b1", "b2")

    assert world.fragments == {0: "b1 b2 b4"}
    reading.read(0, 1)
    world.pass_time(5.0)
    assert reading.payloads == ["a", "b"]
