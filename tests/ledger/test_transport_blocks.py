"""Memory that large answers are received to, again and again."""

from ledger.requests import ReadQuery
from ledger.transport.framing import (
    BLOCK_BYTES,
    BLOCKS_MAX,
    Blocks,
    Budget,
    FrameKind,
    FrameReader,
    frame_header,
)
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY, run_of
from tests.ledger.serving import BOOKIE, add, serving, transport_to


def taken(blocks: Blocks, size_bytes: int = BLOCK_BYTES) -> memoryview:
    view = blocks.take(size_bytes)
    assert view is not None
    assert len(view) == size_bytes
    return view


def test_a_block_is_used_again_when_nobody_looks_at_it_any_more() -> None:
    blocks = Blocks()
    first = taken(blocks)
    first[:5] = b"first"
    part = first[:5].toreadonly()
    second = taken(blocks)
    second[:6] = b"second"
    assert bytes(part) == b"first"
    assert len(blocks) == 2
    memory = first.obj
    first.release()
    assert taken(blocks).obj is not memory, "there is a view of a part of it"
    part.release()
    assert taken(blocks).obj is memory


def test_what_is_small_or_too_large_for_a_block_is_not_put_into_one() -> None:
    blocks = Blocks()
    assert blocks.take(BLOCK_BYTES // 2 - 1) is None
    assert blocks.take(BLOCK_BYTES + 1) is None
    assert len(taken(blocks, BLOCK_BYTES // 2)) == BLOCK_BYTES // 2


def test_so_many_blocks_are_kept_and_no_more() -> None:
    blocks = Blocks()
    held = [taken(blocks) for _ in range(BLOCKS_MAX)]
    assert blocks.take(BLOCK_BYTES) is None
    held[3].release()
    assert blocks.take(BLOCK_BYTES) is not None


def test_what_was_not_needed_for_a_while_is_let_go() -> None:
    blocks = Blocks()
    held = [taken(blocks) for _ in range(3)]
    blocks.rest()
    assert len(blocks) == 3
    for view in held:
        view.release()
    taken(blocks).release()
    blocks.rest()
    assert len(blocks) == 1
    blocks.rest()
    assert len(blocks) == 0


def test_a_large_body_is_received_into_a_block_and_a_small_one_is_not() -> None:
    blocks = Blocks()
    scratch = memoryview(bytearray(100))
    reader = FrameReader(
        scratch,
        body_bytes_max=1 << 31,
        budget=Budget(),
        piece_bytes_max=BLOCK_BYTES,
        blocks=blocks,
    )
    for body in (b"s" * 1000, b"L" * BLOCK_BYTES, b"X" * (BLOCK_BYTES + 1)):
        data = memoryview(frame_header(FrameKind.ANSWER, 1, len(body)) + body)
        frames = []
        while data:
            room = reader.room()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            frames += reader.take(count)
        assert frames[0].body == body
        assert isinstance(frames[0].body, memoryview) == (len(body) == BLOCK_BYTES)
        assert len(blocks) == (len(body) >= BLOCK_BYTES)


async def test_what_a_reader_keeps_of_answers_stays_as_it_was() -> None:
    storage = MemoryStorage()
    async with serving(storage) as bookie, transport_to(bookie.address) as transport:
        runs = [run_of(n, payload=bytes([n]) * (BLOCK_BYTES * 3 // 4)) for n in range(4)]
        for run in runs:
            await add(transport, run)
        kept = []
        for turn in range(3 * BLOCKS_MAX):
            entry_id = turn % 4
            answer = await transport.read(BOOKIE, ReadQuery(7, KEY, entry_id, entry_id))
            if turn < 4:
                kept.append(answer)
        assert [bytes(answer.frames) for answer in kept] == [run.frames for run in runs]
        assert len(transport._blocks) <= 4 + 2, "those of all others were used again"
