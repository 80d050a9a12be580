"""Old bugs of the wire, as stories on a real one: #4404, #4196, rules 10, 11 and 88.

#4404 (buffers shared with the TLS layer) changed bytes below the client, where no digest is
computed any more; the cable does that here. The ancestor matched answers to questions by what
the answer said of itself (rule 88); a bookie, or something between, may repeat itself or mix
up the order. What a bookie makes of each byte is in `test_arrival.py`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookie.storage.engine import BookieStorage
from ledger.entry import ENTRY_BYTES_MAX, HEADER_BYTES
from ledger.protocol.answers import verified
from ledger.requests import AddRun, ReadQuery, Status
from ledger.transport.envelope import checked
from ledger.transport.messages import MESSAGE_BYTES_MAX, ack_message
from ledger.wire import bookie_pb2 as pb
from tests.bookie.runs import KEY, run_of
from tests.simulation.disk import Loss, SimDisk
from tests.simulation.scenarios.bookie import SMALL
from tests.simulation.scenarios.wire import (
    BOOKIE,
    DEADLINE_S,
    add,
    add_until_ok,
    cable_to,
    liar,
    served,
    transport_to,
)
from tests.waiting import PATIENCE_S

LEDGER = 7


def stored(storage: BookieStorage, ledger_id: int = LEDGER) -> bytes:
    return bytes(storage.read(ReadQuery(ledger_id, KEY, 0, 1 << 30, 1 << 30)).frames)


@pytest.mark.parametrize("at", [8, 16, 24, 32, 40, 44, HEADER_BYTES, -1])
def test_4404_bytes_changed_under_the_transport_are_refused_on_arrival(at: int) -> None:
    """Of the header's ledger, entry, LAC, length, the two checksums, the payload's two ends."""

    async def scenario() -> None:
        run, other = run_of(0, payload=b"one of a kind"), run_of(1)
        frame = bytes(run.frames)
        storage = BookieStorage.open(SimDisk(0), SMALL)
        async with (
            served(storage) as address,
            cable_to(address) as cable,
            transport_to(cable.address) as transport,
        ):
            cable.pattern_up = frame[: len(frame) + at + 1 if at < 0 else at + 1]

            assert await add(transport, run, other) == [Status.DAMAGED, Status.OK]

            assert cable.damaged == 1
            assert stored(storage) == other.frames
            assert await add(transport, run) == [Status.OK]  # the connection is as good as ever
            assert stored(storage) == frame + bytes(other.frames)

    asyncio.run(scenario())


def test_4404_bytes_changed_on_the_way_back_are_an_error_of_the_replica_not_an_absence() -> None:
    async def scenario() -> None:
        run = run_of(0, 1, 2)
        storage = BookieStorage.open(SimDisk(0), SMALL)
        async with (
            served(storage) as address,
            cable_to(address) as cable,
            transport_to(cable.address) as transport,
        ):
            assert await add(transport, run) == [Status.OK]
            cable.pattern_down = bytes(run.frames)[: run.lengths[0] + run.lengths[1]]
            query = ReadQuery(LEDGER, KEY, 0, 5)

            found = verified(await transport.read(BOOKIE, query), LEDGER, None)

            assert cable.damaged == 1
            assert found.damaged == 1
            assert list(found.frames) == [0]
            assert found.considered == 0  # it says nothing about entry 1, nor about 2 .. 5
            again = verified(await transport.read(BOOKIE, query), LEDGER, None)
            assert (list(again.frames), again.considered) == ([0, 1, 2], 5)

    asyncio.run(scenario())


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 61])
def test_4196_it_does_not_matter_in_which_pieces_a_message_arrives(piece_bytes: int) -> None:
    async def scenario() -> None:
        runs = [run_of(0, 1), run_of(2), run_of(3, payload=b"\x00" * 500)]
        frames = b"".join(bytes(run.frames) for run in runs)
        storage = BookieStorage.open(SimDisk(0), SMALL)
        async with served(storage) as address, cable_to(address) as cable:
            cable.piece_bytes = piece_bytes
            async with transport_to(cable.address, batch_bytes_max=1 << 20) as transport:
                assert await add(transport, *runs) == [Status.OK] * 3
                answer = await transport.read(BOOKIE, ReadQuery(LEDGER, KEY, 0, 3))
        assert list(answer.entries) == [0, 1, 2, 3]
        assert answer.frames == frames

    asyncio.run(scenario())


def test_4196_the_largest_entry_arrives_whole_and_a_larger_message_does_not_leave() -> None:
    async def scenario() -> None:
        largest = run_of(0, payload=b"\x5a" * ENTRY_BYTES_MAX)
        too_large = replace(largest, entries=[0] * 4, lengths=[len(largest.frames)] * 4)
        too_large = replace(too_large, frames=bytes(largest.frames) * 4)
        assert len(too_large.frames) > MESSAGE_BYTES_MAX
        storage = BookieStorage.open(SimDisk(0), SMALL)
        async with (
            served(storage) as address,
            transport_to(address, timeout_s=DEADLINE_S) as transport,
        ):
            answers = await add(transport, too_large, largest, run_of(1))
            assert answers[:2] == [Status.BAD_REQUEST, Status.OK]
            answer = await transport.read(BOOKIE, ReadQuery(LEDGER, KEY, 0, 0))
            assert answer.frames == largest.frames

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("silently", [False, True])
def test_rule_10_a_connection_that_breaks_half_way_leaves_whole_entries_or_none(
    silently: bool,
) -> None:
    """Cut at many places of one conversation. What was answered OK is there; of the rest nobody
    can know (rule 10); nothing is there in part, and sending it again is fine (rule 11)."""

    # What ends without a word is noticed by the time-out alone.
    timeout_s = 1.0 if silently else PATIENCE_S

    async def scenario() -> None:
        disk = SimDisk(0)
        storage = BookieStorage.open(disk, SMALL)
        runs = {
            cut: [run_of(entry, ledger_id=cut, payload=b"x" * 150) for entry in range(8)]
            for cut in range(0, 2400, 67)
        }
        whole = {cut: b"".join(bytes(run.frames) for run in runs[cut]) for cut in runs}
        frame_bytes = len(runs[0][0].frames)

        async def acknowledged_before_the_cut(address: str, cut: int) -> int:
            async with (
                cable_to(address) as cable,
                transport_to(cable.address, timeout_s=timeout_s) as transport,
            ):
                cable.cut_after_bytes, cable.cut_silently = cut, silently
                answers = await add(transport, *runs[cut])

                good = answers.count(Status.OK)
                assert answers == [Status.OK] * good + [Status.UNREACHABLE] * (8 - good)
                count, rest = divmod(len(stored(storage, cut)), frame_bytes)
                assert (count >= good, rest) == (True, 0)
                assert whole[cut].startswith(stored(storage, cut))
                for run in runs[cut]:
                    await add_until_ok(transport, run)
                assert cable.cuts == 1
                return good

        async with served(storage) as address:
            good = await asyncio.gather(
                *(acknowledged_before_the_cut(address, cut) for cut in runs)
            )
        if silently:
            assert len(set(good)) > 5, "some were cut between one entry and the next"
        disk.crash(Loss.LOST)
        storage = BookieStorage.open(disk, SMALL)
        assert {cut: stored(storage, cut) for cut in runs} == whole

    asyncio.run(scenario())


def ok(first: int, last: int) -> bytes:
    return ack_message(first, last, ())


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param({1: [ok(1, 1)], 2: [ok(1, 1)]}, [Status.OK, Status.UNREACHABLE], id="twice"),
        pytest.param({2: [ok(2, 2), ok(1, 1)]}, [Status.UNREACHABLE] * 2, id="out of order"),
        pytest.param({1: [ok(1, 2)]}, [Status.UNREACHABLE] * 2, id="for what was not sent"),
        pytest.param({1: [ok(0, 1)]}, [Status.UNREACHABLE] * 2, id="from before the first"),
        pytest.param({1: [ok(1, 0)]}, [Status.UNREACHABLE] * 2, id="for nothing"),
        pytest.param(
            {1: [ack_message(1, 1, [Status.OK] * 2)]}, [Status.UNREACHABLE] * 2, id="for two runs"
        ),
        pytest.param(
            {
                1: [
                    checked(
                        pb.AddAck(first_batch=1, last_batch=1, statuses=[pb.STATUS_UNSPECIFIED])
                    )
                ]
            },
            [Status.UNREACHABLE] * 2,
            id="without a meaning",
        ),
    ],
)
def test_rule_88_an_answer_that_fits_no_question_confirms_nothing(
    answers: dict[int, Sequence[bytes]], expected: list[Status]
) -> None:
    """The second run is sent when the first is answered, so an ack "1 to 2" runs ahead."""

    async def scenario() -> None:
        async with (
            liar(lambda batch: answers.get(batch, ())) as address,
            transport_to(address, timeout_s=2.0) as transport,
        ):
            if 1 in answers:
                assert await add(transport, run_of(0)) == expected[:1]
                if expected[0] is Status.OK:
                    assert await add(transport, run_of(1)) == expected[1:]
            else:
                assert await add(transport, run_of(0), run_of(1)) == expected

    asyncio.run(scenario())


def test_rule_88_the_bookie_stores_nothing_of_a_frame_that_names_another_entry() -> None:
    """The ids beside a frame and those in its header are two; both have to be right."""

    async def scenario() -> None:
        frames = bytes(run_of(5).frames)
        as_entry_6 = AddRun(LEDGER, KEY, (6,), (len(frames),), frames)
        as_ledger_8 = AddRun(8, KEY, (5,), (len(frames),), frames)
        storage = BookieStorage.open(SimDisk(0), SMALL)
        async with served(storage) as address, transport_to(address) as transport:
            async with asyncio.timeout(DEADLINE_S):
                assert await add(transport, as_entry_6, as_ledger_8) == [Status.DAMAGED] * 2
            assert storage.ledger_ids() == []

    asyncio.run(scenario())
