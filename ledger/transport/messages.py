"""Values of `ledger.requests` to the bytes of messages of bookie.proto and back, at both ends.

A batch is made of whole runs. Decoding checks a message's checksum, and every count and length
against what it carries, so that nothing behind this file needs to: a message that was damaged
raises `DamagedMessage`, one that does not add up `BadMessage`. Frames are joined and cut as
bytes, never looked into.
"""

from collections.abc import Sequence
from itertools import pairwise
from operator import gt
from typing import Final

from ledger.errors import BadMessage
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
from ledger.transport.envelope import Buffer, Received, checked, checked_parts, verified
from ledger.wire import bookie_pb2 as pb

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest message on the wire; several times `ledger.entry.ENTRY_BYTES_MAX`."""

RUN_BYTES: Final = 32
ENTRY_BYTES: Final = 16
"""What a run, and each of its entries, take of a message beside key and frames, at most."""

_RECOVERY: Final = 1
_EXPLICIT_LAC: Final = 2


def batch_message(runs: Sequence[AddRun]) -> bytes:
    """Return the message that carries *runs*; its number is in the frame, so that the message is
    the same for every bookie."""
    if len(runs) == 1:  # as it mostly is
        [run] = runs
        message = pb.AddBatch(
            ledgers=(run.ledger_id,),
            keys=(run.key,),
            flags=(run.recovery * _RECOVERY + run.explicit_lac * _EXPLICIT_LAC,),
            counts=(len(run.entries),),
            entries=run.entries,
            lengths=run.lengths,
        )
        return checked(message, run.frames)
    message = pb.AddBatch(
        ledgers=[run.ledger_id for run in runs],
        keys=[run.key for run in runs],
        flags=[run.recovery * _RECOVERY + run.explicit_lac * _EXPLICIT_LAC for run in runs],
        counts=[len(run.entries) for run in runs],
    )
    for run in runs:
        message.entries.extend(run.entries)
        message.lengths.extend(run.lengths)
    return checked(message, *[run.frames for run in runs])


def batch_runs(received: Received) -> list[AddRun]:
    """Return the runs of a batch. Raises `BadMessage`."""
    message, frames = verified(pb.AddBatch, received)
    ledgers, keys = message.ledgers[:], message.keys[:]
    flags, counts = message.flags[:], message.counts[:]
    entries, lengths = message.entries[:], message.lengths[:]
    if not len(ledgers) == len(counts) == len(keys) == len(flags):
        raise BadMessage("AddBatch", "its columns of runs differ in length")
    if not sum(counts) == len(entries) == len(lengths):
        raise BadMessage("AddBatch", "its columns of entries differ in length")
    if sum(lengths) != len(frames):
        raise BadMessage("AddBatch", "its lengths do not add up to its frames")
    view = memoryview(frames)
    is_whole = len(ledgers) == 1
    runs = []
    first, start = 0, 0
    for ledger_id, key, flag, count in zip(ledgers, keys, flags, counts, strict=True):
        last = first + count
        run_lengths = lengths if is_whole else lengths[first:last]
        end = start + sum(run_lengths)
        run = AddRun(
            ledger_id,
            key,
            entries if is_whole else entries[first:last],
            run_lengths,
            frames if is_whole else view[start:end],
            bool(flag & _RECOVERY),
            bool(flag & _EXPLICIT_LAC),
        )
        runs.append(run)
        first, start = last, end
    return runs


def ack_message(
    first: int,
    last: int,
    statuses: Sequence[Status],
    held_ms: int = 0,
    *,
    unwatched: bool = False,
) -> bytes:
    message = pb.AddAck(first_batch=first, last_batch=last, held_ms=held_ms, unwatched=unwatched)
    if statuses:
        message.statuses.extend(pb.Status.ValueType(status) for status in statuses)
    return checked(message)


def ack_values(received: Received) -> tuple[int, int, list[Status], int, bool]:
    """Return first batch, last batch, the statuses by run, for how many ms the connection is not
    read from, and whether nobody waits for what is confirmed. Raises `BadMessage`."""
    message, _ = verified(pb.AddAck, received)
    return (
        message.first_batch,
        message.last_batch,
        [_status(status, "AddAck") for status in message.statuses] if message.statuses else [],
        message.held_ms,
        message.unwatched,
    )


def read_request(query: ReadQuery) -> bytes:
    return checked(
        pb.ReadRequest(
            ledger=query.ledger_id,
            key=query.key,
            first=query.first,
            last=query.last,
            bytes_max=query.bytes_max,
            fence=query.fence,
            wait_ms=query.wait_ms,
            repairs=query.repairs,
        )
    )


def read_query(received: Received) -> ReadQuery:
    """Return the query of a request. Raises `BadMessage`."""
    message, _ = verified(pb.ReadRequest, received)
    return ReadQuery(
        message.ledger,
        message.key,
        message.first,
        message.last,
        bytes_max=message.bytes_max,
        fence=message.fence,
        wait_ms=message.wait_ms,
        repairs=message.repairs,
    )


def read_reply(answer: ReadAnswer, request: bytes) -> tuple[Buffer, ...]:
    """Return the parts of the reply: the frames are where they were."""
    message = pb.ReadReply(
        status=pb.Status.ValueType(answer.status),
        entries=answer.entries,
        lengths=answer.lengths,
        considered=answer.considered,
        lac_proof=answer.lac_proof,
        fenced=answer.fenced,
    )
    return checked_parts(message, answer.frames, request=request)


def read_answer(received: Received, request: bytes) -> ReadAnswer:
    """Return the answer of the reply to *request*. Raises `BadMessage`."""
    message, frames = verified(pb.ReadReply, received, request=request)
    entries, lengths = list(message.entries), list(message.lengths)
    if len(entries) != len(lengths) or sum(lengths) != len(frames):
        raise BadMessage("ReadReply", "its columns do not add up to its frames")
    if any(later <= earlier for earlier, later in pairwise(entries)):
        raise BadMessage("ReadReply", "its entries do not ascend")
    return ReadAnswer(
        _status(message.status, "ReadReply"),
        entries,
        lengths,
        frames,
        considered=message.considered,
        lac_proof=message.lac_proof,
        fenced=message.fenced,
    )


def lac_request(query: LacQuery) -> bytes:
    return checked(pb.ReadLacRequest(ledger=query.ledger_id, key=query.key, fence=query.fence))


def lac_query(received: Received) -> LacQuery:
    """Return the query of a request. Raises `BadMessage`."""
    message, _ = verified(pb.ReadLacRequest, received)
    return LacQuery(message.ledger, message.key, fence=message.fence)


def lac_reply(answer: LacAnswer, request: bytes) -> bytes:
    return checked(
        pb.ReadLacReply(
            status=pb.Status.ValueType(answer.status),
            lac_proof=answer.lac_proof,
            fenced=answer.fenced,
            last_entry=answer.last_entry,
        ),
        request=request,
    )


def lac_answer(received: Received, request: bytes) -> LacAnswer:
    """Return the answer of the reply to *request*. Raises `BadMessage`."""
    message, _ = verified(pb.ReadLacReply, received, request=request)
    return LacAnswer(
        _status(message.status, "ReadLacReply"),
        lac_proof=message.lac_proof,
        fenced=message.fenced,
        last_entry=message.last_entry,
    )


def held_request(query: HeldQuery) -> bytes:
    return checked(
        pb.ReadHeldRequest(
            ledger=query.ledger_id,
            key=query.key,
            first=query.first,
            last=query.last,
            ranges_max=query.ranges_max,
        )
    )


def held_query(received: Received) -> HeldQuery:
    """Return the query of a request. Raises `BadMessage`."""
    message, _ = verified(pb.ReadHeldRequest, received)
    return HeldQuery(
        message.ledger, message.key, message.first, message.last, ranges_max=message.ranges_max
    )


def held_reply(answer: HeldAnswer, request: bytes) -> bytes:
    message = pb.ReadHeldReply(
        status=pb.Status.ValueType(answer.status),
        firsts=answer.firsts,
        lasts=answer.lasts,
        considered=answer.considered,
        listed=answer.listed,
    )
    return checked(message, request=request)


def held_answer(received: Received, request: bytes) -> HeldAnswer:
    """Return the answer of the reply to *request*. Raises `BadMessage`.

    It says nothing but of what was asked, and denies nothing that was not looked at."""
    message, _ = verified(pb.ReadHeldReply, received, request=request)
    query = held_query(request)
    status = _status(message.status, "ReadHeldReply")
    firsts, lasts = list(message.firsts), list(message.lasts)
    if len(firsts) != len(lasts) or any(map(gt, firsts, lasts)):
        raise BadMessage("ReadHeldReply", "its columns are no ranges")
    if any(first <= last + 1 for first, last in zip(firsts[1:], lasts[:-1], strict=True)):
        raise BadMessage("ReadHeldReply", "its ranges do not ascend")
    if firsts and not query.first <= firsts[0] <= lasts[-1] <= message.listed:
        raise BadMessage("ReadHeldReply", "it lists what was not asked for, or not looked at")
    if not message.considered <= message.listed <= query.last:
        raise BadMessage("ReadHeldReply", "it denies what was not looked at")
    return HeldAnswer(status, firsts, lasts, considered=message.considered, listed=message.listed)


def info_request() -> bytes:
    return checked(pb.InfoRequest())


def check_info_request(received: Received) -> None:
    """Raises `BadMessage`."""
    verified(pb.InfoRequest, received)


def info_reply(answer: InfoAnswer, request: bytes) -> bytes:
    return checked(
        pb.InfoReply(
            bookie=answer.bookie,
            incarnation=answer.incarnation,
            instance=answer.instance,
            read_only=answer.read_only,
            identity=answer.identity,
            life=answer.life,
        ),
        request=request,
    )


def info_answer(received: Received, request: bytes) -> InfoAnswer:
    """Return the answer of the reply to *request*. Raises `BadMessage`."""
    message, _ = verified(pb.InfoReply, received, request=request)
    return InfoAnswer(
        message.bookie,
        message.incarnation,
        message.instance,
        message.read_only,
        message.identity,
        message.life,
    )


def _status(number: int, message: str) -> Status:
    if number not in Status._value2member_map_ or number == Status.UNREACHABLE:
        raise BadMessage(message, f"status {number} is not known here")
    return Status(number)
