"""Old bugs about bytes that changed on their way, as stories: #4404, #4196/#4140, #3919,
BK-958, #2563.

All of them are of one kind: a buffer that somebody else uses too, is looked at from the wrong
place, or is padded with what was never written. The ancestor's bookies store whatever arrives;
these look at every byte first (rule 87). What a real connection does is in `test_wire.py`.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie.storage.engine import BookieStorage
from ledger.entry import HEADER_BYTES, access_key, encode_frame
from ledger.ids import NO_ENTRY
from ledger.protocol import recovery_events
from ledger.requests import AddRun, ReadQuery, Status
from ledger.transport.messages import batch_message, batch_runs
from tests.simulation.disk import Loss, SimDisk
from tests.simulation.scenarios.bookie import SMALL
from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import World

KEY = access_key(b"")
ZERO_BUFFER_BYTES = 64 * 1024
"""What BK-958's buffer of zeros held; asked for more, it gave nothing."""


def frame_of(entry: int, payload: bytes, ledger_id: int = 1) -> bytes:
    return encode_frame(
        ledger_id=ledger_id,
        entry_id=entry,
        last_add_confirmed=entry - 1,
        length=len(payload),
        payload=payload,
    )


def run_of(*payloads: bytes, ledger_id: int = 1) -> AddRun:
    """Return the entries 0, 1, ... with these payloads."""
    frames = [frame_of(entry, payload, ledger_id) for entry, payload in enumerate(payloads)]
    lengths = [len(frame) for frame in frames]
    return AddRun(ledger_id, KEY, range(len(frames)), lengths, b"".join(frames))


def stored(storage: BookieStorage, ledger_id: int = 1) -> list[bytes]:
    """Return all frames of a ledger, one by one."""
    answer = storage.read(ReadQuery(ledger_id, KEY, 0, 1 << 30, 1 << 30))
    assert answer.status in {Status.OK, Status.NO_SUCH_LEDGER}
    return [bytes(frame) for _, frame in answer.each()]


def damage_on_the_way(patch: pytest.MonkeyPatch, world: World, name: str, *, at: int) -> None:
    """Let one bit of byte *at* of all frames to bookie *name* change after they were sent."""
    bookie = world.bookie(name)
    add = bookie.add

    def damaged(run: AddRun, reply: Callable[[Status], None]) -> None:
        add(replace(run, frames=with_bit_flipped(bytes(run.frames), at)), reply)

    patch.setattr(bookie, "add", damaged)


def with_bit_flipped(frames: bytes, at: int) -> bytes:
    return frames[:at] + bytes([frames[at] ^ 1]) + frames[at + 1 :]


@pytest.mark.parametrize("at", [0, HEADER_BYTES - 1, HEADER_BYTES])
def test_4404_an_entry_damaged_on_its_way_is_refused_and_another_bookie_gets_it(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """b3 would have stored, and acknowledged, what no reader can use. It says so instead."""
    world = World(bookies=4)
    writing = world.writer()
    damage_on_the_way(monkeypatch, world, "b3", at=at)
    world.hold_answers(Kind.ADD, of="b2")

    writing.append("a")

    assert world.bookie("b3").entries(world.ledger_id) == []
    assert world.fragments == {0: "b1 b2 b4"}
    assert writing.acknowledged == [0]  # by b1 and b4
    writing.close()
    world.crash("b1", "b2")
    reading = world.reader()
    reading.read(0, 0)
    world.pass_time(5.0)
    assert reading.payloads == ["a"]


def test_4404_an_entry_damaged_on_its_way_to_all_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the sender's buffer was changed before the first byte left."""
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    for name in ("b1", "b2", "b3"):
        damage_on_the_way(monkeypatch, world, name, at=HEADER_BYTES)

    writing.append("a")
    world.pass_time(60.0)

    assert writing.acknowledged == []
    assert writing.failure is not None
    monkeypatch.undo()
    recovering.recover()
    assert recovering.closed_at == NO_ENTRY


def test_4404_a_copy_that_recovery_makes_is_looked_at_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    cut = [world.hold(Kind.ADD, at=name) for name in ("b2", "b3")]
    writing.append("only b1 has it")
    writing.die()
    for adds in cut:
        adds.lose()
    for name in ("b2", "b3"):
        damage_on_the_way(monkeypatch, world, name, at=HEADER_BYTES)

    recovering.recover()
    world.pass_time(60.0)

    assert recovering.failure is recovery_events.RecoveryFailure.NOT_ENOUGH_BOOKIES
    assert world.bookie("b2").entries(world.ledger_id) == []
    assert world.bookie("b3").entries(world.ledger_id) == []


def test_4140_no_byte_of_a_run_is_left_out_of_the_check() -> None:
    storage = BookieStorage.open(SimDisk(0), SMALL)
    run = run_of(b"first", b"", b"third")

    for at in range(len(run.frames)):
        damaged = replace(run, frames=with_bit_flipped(bytes(run.frames), at))
        assert storage.add(damaged) == (Status.DAMAGED, 0), f"byte {at}"

    assert stored(storage) == []
    assert not storage.has_pending()


@pytest.mark.parametrize("at", [0, 4095, 4096, 65535, 65536, 262_143, 999_999])
def test_4140_the_far_end_of_a_large_entry_is_checked_as_well(at: int) -> None:
    """The checksum was taken in steps of a buffer's length, and each looked at the first."""
    storage = BookieStorage.open(SimDisk(0), SMALL)
    run = run_of(b"0123456789" * 100_000)

    damaged = with_bit_flipped(bytes(run.frames), HEADER_BYTES + at)

    assert storage.add(replace(run, frames=damaged)) == (Status.DAMAGED, 0)
    assert storage.add(run)[0] is Status.OK


@pytest.mark.parametrize("before", [1, 2, 3, 4, 7, 8, 15, 16, 31, 48, 49, 63, 64, 4095])
def test_4196_a_run_is_checked_from_where_it_begins_in_its_buffer(before: int) -> None:
    storage = BookieStorage.open(SimDisk(0), SMALL)
    run = run_of(b"first", b"second" * 10)
    buffer = b"\x55" * before + bytes(run.frames) + b"\xaa" * before

    slice_of_it = memoryview(buffer)[before : before + len(run.frames)]

    assert storage.add(replace(run, frames=slice_of_it))[0] is Status.OK
    assert b"".join(stored(storage)) == run.frames


def test_4196_each_run_of_a_batch_is_cut_out_where_it_lies() -> None:
    """A batch carries the frames of all its runs in one piece; lengths alone separate them."""
    storage = BookieStorage.open(SimDisk(0), SMALL)
    runs = [run_of(b"x" * number, b"", b"y", ledger_id=number) for number in range(40)]

    arrived = batch_runs(batch_message(runs))

    assert [storage.add(run)[0] for run in arrived] == [Status.OK] * 40
    for run in runs:
        assert b"".join(stored(storage, run.ledger_id)) == run.frames


def test_4196_frames_cut_apart_at_any_other_byte_are_refused() -> None:
    storage = BookieStorage.open(SimDisk(0), SMALL)
    run = run_of(b"first", b"second")
    right = run.lengths[0]

    for cut in range(len(run.frames) + 1):
        status, _ = storage.add(replace(run, lengths=[cut, len(run.frames) - cut]))
        assert status is (Status.OK if cut == right else Status.DAMAGED), f"cut at {cut}"

    assert b"".join(stored(storage)) == run.frames


@pytest.mark.parametrize("missing", [-64, -1, 1, 5, HEADER_BYTES])
def test_4196_a_frame_with_bytes_too_many_or_too_few_is_refused(missing: int) -> None:
    storage = BookieStorage.open(SimDisk(0), SMALL)
    frame = bytes(run_of(b"first").frames)

    other = frame[:-missing] if missing > 0 else frame + bytes(-missing)

    assert storage.add(AddRun(1, KEY, (0,), (len(other),), other)) == (Status.DAMAGED, 0)
    assert stored(storage) == []


def test_3919_who_checks_an_entry_takes_nothing_from_it() -> None:
    """One buffer goes to a whole write set, and again to who replaces one of it."""
    run = run_of(b"first", b"second")
    buffer = bytearray(run.frames)
    shared = replace(run, frames=memoryview(buffer))

    storages = [BookieStorage.open(SimDisk(0), SMALL) for _ in range(4)]
    for storage in storages:
        assert storage.add(shared)[0] is Status.OK
        assert storage.add(shared)[0] is Status.OK  # sent again, as after a lost answer

    assert bytes(buffer) == run.frames
    assert [b"".join(stored(storage)) for storage in storages] == [run.frames] * 4


def test_3919_an_entry_sent_again_to_a_replacement_is_the_same_byte_for_byte() -> None:
    world = World(bookies=4)
    writing = world.writer()
    world.hold(Kind.ADD, at="b2")
    world.crash("b3")

    writing.append("a", "b")

    assert world.fragments == {0: "b1 b2 b4"}
    for entry in range(2):
        frames = {world.bookie(name).frame(world.ledger_id, entry) for name in ("b1", "b4")}
        assert len(frames) == 1
        assert len(frames.pop()) > HEADER_BYTES


@pytest.mark.parametrize("then", ["memory", "disk", "replay"])
def test_2563_what_was_taken_does_not_change_with_the_buffer_it_came_in(then: str) -> None:
    """The sender uses its buffer for the next thing before the journal was written."""
    disk = SimDisk(0)
    storage = BookieStorage.open(disk, SMALL)
    run = run_of(b"first", b"second")
    buffer = bytearray(run.frames)
    assert storage.add(replace(run, frames=memoryview(buffer)))[0] is Status.OK

    buffer[:] = b"\x00" * len(buffer)

    storage.commit()
    if then == "disk":
        storage.checkpoint()
    elif then == "replay":
        disk.crash(Loss.LOST)
        storage = BookieStorage.open(disk, SMALL)
    assert b"".join(stored(storage)) == run.frames


@pytest.mark.parametrize("loss", [Loss.LOST, Loss.KEPT])
@pytest.mark.parametrize("zeros", [0, 1, ZERO_BUFFER_BYTES - 1, ZERO_BUFFER_BYTES + 1, 300_000])
def test_bk_958_entries_of_zeros_lie_whole_between_zeros_that_only_fill(
    loss: Loss, zeros: int
) -> None:
    """The journal grows by more zeros than a buffer of zeros holds, before and behind them."""
    disk = SimDisk(0)
    config = replace(SMALL, journal_preallocate_bytes=3 * ZERO_BUFFER_BYTES)
    storage = BookieStorage.open(disk, config)
    runs = [run_of(bytes(zeros), b"end", ledger_id=ledger_id) for ledger_id in range(1, 4)]

    for run in runs:
        assert storage.add(run)[0] is Status.OK
        storage.commit()
    disk.crash(loss)
    storage = BookieStorage.open(disk, config)

    assert storage.ledger_ids() == [1, 2, 3]
    for _ in ("memory", "disk"):
        for run in runs:
            assert b"".join(stored(storage, run.ledger_id)) == run.frames
        storage.checkpoint()


@pytest.mark.parametrize("size_bytes", [1, HEADER_BYTES, 100, ZERO_BUFFER_BYTES + 1])
def test_bk_958_zeros_are_never_taken_for_an_entry(size_bytes: int) -> None:
    """Not even for entry 0 of ledger 0, whose ids are zeros too."""
    storage = BookieStorage.open(SimDisk(0), SMALL)

    status, _ = storage.add(AddRun(0, KEY, (0,), (size_bytes,), bytes(size_bytes)))

    assert status is Status.DAMAGED
    assert storage.ledger_ids() == []
