"""Census, rolls and accounts: what was counted is found again, and what is less or another is
a loss."""

import errno
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from google_crc32c import value as crc32c

from bookie.disk.port import DiskFull, RealDisk
from bookie.errors import CensusDamaged
from bookie.index.redo import RedoPlace
from bookie.index.tombstones import Edition
from bookie.journal.format import JournalMark
from bookie.loss.census import (
    LIMBO_PATH,
    LOGS_PATH,
    NOTHING,
    PATH,
    Accounts,
    Census,
    Needed,
    Roll,
    RollPlace,
    Rolls,
    read_census,
    write_census,
)
from bookie.loss.limbo import Limbo, LimboPhase
from ledger.requests import HeldAnswer, HeldQuery, Status
from tests.simulation.disk import Loss, SimDisk

WHY = "a file is gone"
CENSUS = Census(3, (Rolls(RollPlace(1, 2), RollPlace(3, 4)),), (JournalMark(1, 64),), (100,))
NEEDED = Needed(RedoPlace(1, 3, 17), Edition(2, 5), Edition(1, 9))


def sealed(body: bytes) -> bytes:
    """Return *body* with the checksum that censuses and limbos end with."""
    return body + struct.pack("<I", crc32c(body))


def rolled(disk: SimDisk) -> Roll:
    """Three batches: ledgers 1 to 3 of which 2 is removed, logs 1 to 2 of which 1 is removed."""
    roll = Roll(disk, LOGS_PATH)
    roll.append({1: 11, 2: 12}, logs={1: 64, 7: 0})
    roll.append({3: 13, 1: 14}, NEEDED, logs={2: 80})
    roll.append(needed=NEEDED, removed=[2], logs={1: 0, 2: 99})
    return roll


def loaded(disk: SimDisk, expected: RollPlace | None = None) -> tuple[Roll, list[int], str]:
    roll = Roll(disk, LOGS_PATH)
    problem = roll.load(expected)
    return roll, list(roll.editions), problem


def test_a_census_comes_back_from_its_bytes_and_no_damaged_byte_passes() -> None:
    disk = SimDisk(0)
    assert read_census(disk) is None
    write_census(disk, CENSUS)
    assert read_census(disk) == CENSUS
    data = CENSUS.encode()
    for at in range(len(data)):
        with pytest.raises(ValueError, match="checksum differs"):
            Census.decode(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"checksum differs|cut short"):
            Census.decode(data[:at])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"DLOGCENT" + CENSUS.encode()[8:-4], "not of version"),
        (b"DLOGCENS\3" + CENSUS.encode()[9:-4], "not of version"),
        (CENSUS.encode()[:-4] + bytes(8), "longer or shorter"),
        (CENSUS.encode()[:-12], "longer or shorter"),
    ],
)
def test_a_census_that_says_something_else_is_none_although_its_checksum_is_right(
    body: bytes, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Census.decode(sealed(body))


def test_a_limbo_of_another_format_is_none_although_its_checksum_is_right() -> None:
    body = Limbo(WHY).encode()[:-4]
    for other in (b"DLOGCENS" + body[8:], body[:8] + b"\3" + body[9:]):
        with pytest.raises(ValueError, match="not of a version"):
            Limbo.decode(sealed(other))


def test_what_a_roll_was_told_is_found_again_and_continues() -> None:
    disk = SimDisk(0)
    roll = rolled(disk)
    disk.crash(Loss.LOST)
    again, ledgers, problem = loaded(disk, roll.place)
    assert (ledgers, problem, again.place) == ([1, 3], "", roll.place)
    assert (again.logs, again.needed) == (roll.logs, roll.needed) == ({2: 99}, NEEDED)
    assert again.editions == roll.editions == {1: 14, 3: 13}
    again.append({9: 19}, logs={5: 1})
    assert again.place.batch == roll.place.batch + 1 == 4
    assert loaded(disk, again.place)[1:] == ([1, 3, 9], "")
    again.write({4: 14}, NOTHING)
    assert (again.needed, again.logs) == (NOTHING, {2: 99, 5: 1})
    rewritten, ledgers, problem = loaded(disk, again.place)
    assert (rewritten.place.batch, ledgers, problem) == (5, [4], "")
    assert (rewritten.needed, rewritten.logs) == (NOTHING, again.logs)


def test_a_first_append_is_the_whole_roll() -> None:
    disk = SimDisk(0)
    roll = Roll(disk, LOGS_PATH)
    roll.append({1: 1}, logs={1: 64, 7: 0})
    assert (roll.place.batch, roll.logs) == (1, {1: 64})
    assert loaded(disk, roll.place)[1:] == ([1], "")
    assert loaded(disk)[0].logs == {1: 64}


@pytest.mark.parametrize("left", ["nothing", "the header", "one batch"])
def test_a_shorter_roll_is_missed_and_what_is_written_next_is_newer(left: str) -> None:
    disk = SimDisk(0)
    roll = Roll(disk, LOGS_PATH)
    roll.append({1: 1})
    one = len(disk.content(LOGS_PATH))
    roll.append({2: 1})
    disk.crash(Loss.LOST)
    disk.cut(LOGS_PATH, {"nothing": 0, "the header": 24, "one batch": one}[left])
    again, ledgers, problem = loaded(disk, roll.place)
    assert "is shorter than at the last checkpoint" in problem
    assert ledgers == ([1] if left == "one batch" else [])
    again.write({1: 1})
    assert again.place.batch > roll.place.batch
    assert loaded(disk, again.place)[1:] == ([1], "")


def test_each_damaged_byte_of_a_roll_ends_it_where_it_is() -> None:
    disk = SimDisk(0)
    place = rolled(disk).place
    disk.crash(Loss.LOST)
    content = disk.content(LOGS_PATH)
    for at in range(len(content)):
        copy = disk.copy()
        copy.damage(LOGS_PATH, at, bytes([content[at] ^ 4]))
        _, ledgers, problem = loaded(copy, place)
        assert problem, at
        assert ledgers in ([], [1, 2], [1, 2, 3]), at
        roll, _, _ = loaded(copy)
        roll.append({8: 1})
        assert loaded(copy)[1] == [*ledgers, 8], "it continues behind what is whole"


def test_a_roll_of_as_many_batches_that_is_another_one_is_missed() -> None:
    """An older state of the directory, to which as much was added since."""
    disk, other = SimDisk(0), SimDisk(1)
    place = rolled(disk).place
    roll = Roll(other, LOGS_PATH)
    for ledger_id in (1, 2, 3, 4):
        roll.append({ledger_id: 1})
    assert "is another one than was written" in loaded(other, place)[2]


@pytest.mark.parametrize("operation", ["create", "write"])
def test_what_has_no_space_leaves_what_was_there_and_no_file_beside_it(operation: str) -> None:
    disk = SimDisk(0)
    write_census(disk, CENSUS)
    disk.fail(operation, "", errno.ENOSPC)
    with pytest.raises(DiskFull):
        write_census(disk, replace(CENSUS, number=4))
    assert read_census(disk) == CENSUS
    assert disk.files() == [PATH]


def test_each_census_follows_the_one_before_and_is_passed_on() -> None:
    disk = SimDisk(0)
    passed: list[Census] = []
    for number in (1, 2):
        accounts = Accounts(disk)
        accounts.on_census = passed.append
        accounts.count(CENSUS.rolls, CENSUS.journals, CENSUS.sizes)
        assert accounts.census == passed[-1]
        assert [each.number for each in passed] == list(range(1, 2 * number))
        accounts.count(CENSUS.rolls, CENSUS.journals, CENSUS.sizes)
        disk.kill()
    assert Accounts(disk).census == passed[-1] == replace(CENSUS, number=4)


def test_damaged_or_lost_accounts_are_losses_themselves() -> None:
    disk = SimDisk(0)
    accounts = Accounts(disk)
    accounts.lost([WHY])
    accounts.count(CENSUS.rolls, CENSUS.journals, CENSUS.sizes)
    disk.crash(Loss.LOST)
    for path in (PATH, LIMBO_PATH):
        copy = disk.copy()
        copy.damage(path, 9, b"\xff")
        damaged = Accounts(copy)
        assert [f"{path} is damaged" in loss for loss in damaged.losses] == [True]
        assert (damaged.census is None, damaged.limbo is None) == (path == PATH, path != PATH)
        with pytest.raises(CensusDamaged if path == PATH else AssertionError):
            assert read_census(copy) is None
    disk.lose(LIMBO_PATH)
    assert "is gone" in Accounts(disk).losses[0]


def test_a_loss_and_a_restore_are_remembered_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimDisk(0)
    accounts = Accounts(disk)
    accounts.lost([])
    assert (accounts.limbo, disk.files()) == (None, [])
    accounts.restored("older store")
    assert "metadata_store_was_restored" in caplog.text
    assert "bookie_may_have_lost_data" not in caplog.text
    disk.crash(Loss.LOST)
    assert Accounts(disk).limbo == Limbo("older store", lost=False)
    accounts = Accounts(disk)
    accounts.judged(lambda limbo: limbo.known([4], []).above(9))
    accounts.lost([WHY, WHY])
    assert "bookie_may_have_lost_data" in caplog.text
    accounts.restored("older again")
    disk.crash(Loss.LOST)
    assert Accounts(disk).limbo == replace(
        Limbo("older again", floor=9), before=Limbo("").known([4], []).before
    )


def test_a_limbo_that_is_over_stays_over_after_a_power_failure() -> None:
    disk = SimDisk(0)
    accounts = Accounts(disk)
    changes: list[Callable[[Limbo], Limbo]] = [
        lambda limbo: limbo,
        lambda limbo: limbo.known([], []),
        lambda limbo: limbo.again("there is none any more"),
    ]
    accounts.judged(changes[2])
    assert disk.files() == [], "what is not there does not change"
    accounts.lost([WHY])
    accounts.count(CENSUS.rolls, CENSUS.journals, CENSUS.sizes)
    operations = disk.operations
    accounts.judged(changes[0])
    assert disk.operations == operations, "what stays the same is not written"
    accounts.judged(changes[1])
    accounts.judged(changes[2])
    disk.crash(Loss.LOST)
    again = Accounts(disk)
    assert (again.limbo, again.losses, disk.files()) == (None, [], [PATH])
    assert again.census == replace(CENSUS, number=2)


def test_no_normal_add_is_taken_to_what_may_have_been_fenced() -> None:
    begun = Limbo(WHY)
    assert not begun.takes_adds_to(7)
    over = begun.known([7], [])
    assert over.phase is LimboPhase.OVER
    assert [over.takes_adds_to(one) for one in (6, 7, 8)] == [True, False, True]
    above = over.above(8).above(5)
    assert [above.takes_adds_to(one) for one in (6, 7, 8)] == [False, False, True]
    assert [above.is_orphan(one) for one in (6, 7, 8)] == [True, False, False]
    assert above.only([]) == above, "beside a floor all stay"
    assert list(over.only([]).before) == []


def test_a_list_that_failed_says_nothing_more_in_limbo() -> None:
    limbo, query = Limbo(WHY), HeldQuery(7, b"k" * 20, 0, 9)
    failed = HeldAnswer(Status.IO_ERROR)
    assert limbo.held(query, failed, let_go=False) is failed


def test_no_file_stays_open(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))

    def files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = files()
    write_census(disk, CENSUS)
    assert read_census(disk) == CENSUS
    assert files() == before
    roll = Roll(disk, LOGS_PATH)
    roll.append({1: 1})
    roll.append({2: 1})
    assert files() == before


@pytest.mark.parametrize("full", [False, True])
def test_a_roll_that_is_too_long_is_rewritten_unless_there_is_no_space(
    monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    monkeypatch.setattr("bookie.loss.census._SLACK_BYTES", 500)
    disk = SimDisk(0)
    roll = Roll(disk, LOGS_PATH)
    for number in range(1, 50):
        if full and number > 1:
            for _ in range(2):
                disk.fail("create", LOGS_PATH, errno.ENOSPC)
        roll.append({1: number, number: number}, logs={number: 64, number - 2: 0})
        if number % 5 == 0:
            roll.append(needed=NEEDED, removed=[number], logs={})
        again = Roll(disk, LOGS_PATH)
        assert again.load(roll.place) == ""
        assert (again.editions, again.logs, again.needed, again.place) == (
            roll.editions,
            roll.logs,
            roll.needed,
            roll.place,
        )
    assert roll.editions == {1: 49} | {n: n for n in range(2, 50) if n % 5}
    assert (len(disk.content(LOGS_PATH)) > 3500) is full
