"""Messages between client and bookie: what goes in comes out, or nothing does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from ledger.entry import HEADER_BYTES
from ledger.errors import BadMessage, DamagedMessage
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    InfoAnswer,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from ledger.transport.envelope import checked, verified
from ledger.transport.messages import (
    ack_message,
    ack_values,
    batch_message,
    batch_runs,
    check_info_request,
    held_answer,
    held_query,
    held_reply,
    held_request,
    info_answer,
    info_reply,
    info_request,
    lac_answer,
    lac_query,
    lac_reply,
    lac_request,
    read_answer,
    read_query,
    read_reply,
    read_request,
)
from ledger.wire import bookie_pb2 as pb
from tests.bookie.runs import KEY, run_of

_READ = read_request(ReadQuery(7, KEY, 0, 9))
_LAC = lac_request(LacQuery(7, KEY))
_INFO = info_request()
_HELD = held_request(HeldQuery(7, KEY, 3, 90, ranges_max=5))
_LISTED = HeldAnswer(Status.OK, [3, 7], [4, 8], considered=5, listed=60)
_RUN = run_of(0, 1, payload=b"abc")
_FOUND = ReadAnswer(
    Status.OK,
    [0, 1],
    _RUN.lengths,
    _RUN.frames,
    considered=9,
    lac_proof=bytes(_RUN.frames[:HEADER_BYTES]),
)
_KINDS = pb.AddBatch, pb.AddAck, pb.ReadRequest, pb.ReadReply, pb.ReadLacRequest, pb.ReadLacReply


@dataclass(frozen=True, slots=True)
class _Sample:
    name: str
    sent: bytes
    decode: Callable[[bytes], object]
    """Raises `BadMessage`. What it returns is compared, but for the bytes of frames."""


def _batch(received: bytes) -> object:
    return [_without_bytes(run) for run in batch_runs(received)]


def _without_bytes(run: AddRun) -> object:
    return (
        run.ledger_id, run.key, list(run.entries), list(run.lengths), len(run.frames),
        run.recovery, run.explicit_lac,
    )  # fmt: skip


def _read_answer(received: bytes) -> object:
    answer = read_answer(received, _READ)
    return replace(answer, frames=b""), len(answer.frames)


_SAMPLES = [
    _Sample("batch", batch_message([_RUN]), _batch),
    _Sample("batch of runs", batch_message([_RUN, run_of(5, ledger_id=9)]), _batch),
    _Sample("recovery", batch_message([run_of(3, recovery=True)]), _batch),
    _Sample("batch of nothing", batch_message([]), _batch),
    _Sample("ack", ack_message(3, 5, []), ack_values),
    _Sample("ack of statuses", ack_message(3, 3, [Status.OK, Status.FENCED]), ack_values),
    _Sample("ack of what nobody waits for", ack_message(3, 5, [], unwatched=True), ack_values),
    _Sample("ack of nothing", ack_message(0, 0, []), ack_values),
    _Sample("read", _READ, read_query),
    _Sample("fencing read", read_request(ReadQuery(7, KEY, 0, 9, fence=True)), read_query),
    _Sample("read of nothing", read_request(ReadQuery(0, b"", 0, 0, bytes_max=0)), read_query),
    _Sample("found", b"".join(read_reply(_FOUND, _READ)), _read_answer),
    _Sample(
        "absent", b"".join(read_reply(ReadAnswer(Status.OK, considered=9), _READ)), _read_answer
    ),
    _Sample(
        "no ledger", b"".join(read_reply(ReadAnswer(Status.NO_SUCH_LEDGER), _READ)), _read_answer
    ),
    _Sample("read LAC", _LAC, lac_query),
    _Sample("fencing read LAC", lac_request(LacQuery(0, b"", fence=True)), lac_query),
    _Sample(
        "LAC",
        lac_reply(LacAnswer(Status.OK, _FOUND.lac_proof, fenced=True, last_entry=4), _LAC),
        lambda received: lac_answer(received, _LAC),
    ),
    _Sample(
        "LAC of nothing",
        lac_reply(LacAnswer(Status.OK, last_entry=0), _LAC),
        lambda received: lac_answer(received, _LAC),
    ),
    _Sample("what is held", _HELD, held_query),
    _Sample(
        "held",
        held_reply(_LISTED, _HELD),
        lambda received: held_answer(received, _HELD),
    ),
    _Sample("ask info", _INFO, check_info_request),
    _Sample(
        "info",
        info_reply(InfoAnswer("b1", "start 1", "instance 1", read_only=True), _INFO),
        lambda received: info_answer(received, _INFO),
    ),
]
_each_sample = pytest.mark.parametrize("sample", _SAMPLES, ids=lambda sample: sample.name)


def test_runs_survive_the_way_into_a_message_and_back() -> None:
    runs = [run_of(0, 1), run_of(5, ledger_id=9, recovery=True), run_of(2)]
    again = batch_runs(batch_message(runs))
    assert [bytes(run.frames) for run in again] == [run.frames for run in runs]
    assert [list(run.entries) for run in again] == [[0, 1], [5], [2]]
    assert [run.recovery for run in again] == [False, True, False]


def test_an_answer_survives_the_way_into_a_message_and_back() -> None:
    assert read_answer(b"".join(read_reply(_FOUND, _READ)), _READ) == _FOUND
    assert held_answer(held_reply(_LISTED, _HELD), _HELD) == _LISTED
    query = HeldQuery(7, KEY, 3, 90, ranges_max=5)
    assert held_query(held_request(query)) == query


@pytest.mark.parametrize(
    ("firsts", "lasts", "considered", "listed", "why"),
    [
        ([3], [], 9, 9, "no ranges"),
        ([4], [3], 9, 9, "no ranges"),
        ([3, 5], [4, 6], 9, 9, "do not ascend"),
        ([8, 3], [9, 4], 9, 9, "do not ascend"),
        ([2], [4], 9, 9, "not asked for"),
        ([3], [10], 9, 9, "not looked at"),
        ([3], [4], 10, 9, "denies what was not looked at"),
        ([], [], 91, 91, "denies what was not looked at"),
    ],
)
def test_a_list_of_what_is_held_says_nothing_beyond_what_was_asked(
    firsts: list[int], lasts: list[int], considered: int, listed: int, why: str
) -> None:
    answer = HeldAnswer(Status.OK, firsts, lasts, considered=considered, listed=listed)
    with pytest.raises(BadMessage, match=why):
        held_answer(held_reply(answer, _HELD), _HELD)


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (pb.AddBatch(ledgers=[1], keys=[b""], flags=[0], counts=[2], entries=[1], lengths=[1]), 1),
        (pb.AddBatch(ledgers=[1, 2], keys=[b""], flags=[0], counts=[0]), 0),
        (pb.AddBatch(ledgers=[1], keys=[b""], flags=[0], counts=[1], entries=[1], lengths=[9]), 8),
    ],
)
def test_a_batch_that_does_not_add_up_is_refused(message: pb.AddBatch, frames: int) -> None:
    with pytest.raises(BadMessage, match=r"columns|lengths"):
        batch_runs(checked(message, bytes(frames)))


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (pb.ReadReply(), 0),
        (pb.ReadReply(status=pb.OK, entries=[1], lengths=[2]), 1),
        (pb.ReadReply(status=pb.OK, entries=[2, 1], lengths=[0, 0]), 0),
    ],
)
def test_a_reply_that_does_not_add_up_is_refused(message: pb.ReadReply, frames: int) -> None:
    with pytest.raises(BadMessage, match=r"status|columns|ascend"):
        read_answer(checked(message, bytes(frames), request=_READ), _READ)


@_each_sample
def test_one_flipped_bit_is_refused_or_changes_no_value(sample: _Sample) -> None:
    """Only in the bytes of frames may a bit change unseen: they have checksums of their own."""
    values = sample.decode(sample.sent)
    frames_bytes = len(pb.Checked.FromString(sample.sent).frames)
    refused = 0
    for damaged in _flipped(sample.sent):
        try:
            assert sample.decode(damaged) == values
        except DamagedMessage:
            refused += 1
    assert refused == 8 * (len(sample.sent) - frames_bytes)


@_each_sample
def test_a_message_cut_short_or_with_a_byte_too_many_is_refused(sample: _Sample) -> None:
    for length in range(len(sample.sent)):
        with pytest.raises(DamagedMessage):
            sample.decode(sample.sent[:length])
    with pytest.raises(DamagedMessage):
        sample.decode(sample.sent + b"\0")


@_each_sample
def test_two_bytes_that_changed_places_are_seen(sample: _Sample) -> None:
    head = len(sample.sent) - len(pb.Checked.FromString(sample.sent).frames)
    for at in range(head - 1):
        one, other = sample.sent[at : at + 1], sample.sent[at + 1 : at + 2]
        if one != other:
            with pytest.raises(DamagedMessage):
                sample.decode(sample.sent[:at] + other + one + sample.sent[at + 2 :])


def test_no_message_passes_for_another_kind() -> None:
    """Not even if all fields have their defaults, so that nothing but the checksum travels."""
    for kind in _KINDS:
        for other in _KINDS:
            if kind is other:
                verified(other, checked(kind()))
            else:
                with pytest.raises(DamagedMessage):
                    verified(other, checked(kind()))


def test_a_message_without_a_checksum_is_refused() -> None:
    for kind in _KINDS:
        with pytest.raises(DamagedMessage) as refused:
            verified(kind, b"")
        assert refused.value.retryable
        assert refused.value.outcome_unknown
        with pytest.raises(DamagedMessage):
            verified(kind, kind().SerializeToString())


def test_frames_of_another_length_are_refused() -> None:
    envelope = pb.Checked.FromString(batch_message([_RUN]))
    for frames in (b"", envelope.frames[:-1], envelope.frames + b"\0"):
        envelope.frames = frames
        with pytest.raises(DamagedMessage):
            batch_runs(envelope.SerializeToString())


def test_a_reply_does_not_pass_for_the_answer_to_another_request() -> None:
    other = ReadQuery(8, KEY, 0, 9)
    with pytest.raises(DamagedMessage):
        read_answer(b"".join(read_reply(_FOUND, _READ)), read_request(other))
    with pytest.raises(DamagedMessage):
        lac_answer(lac_reply(LacAnswer(Status.OK), _LAC), lac_request(LacQuery(8, KEY)))


def _flipped(sent: bytes) -> Iterator[bytes]:
    for bit in range(8 * len(sent)):
        damaged = bytearray(sent)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)
