"""Values of `ledger.requests` to messages of bookie.proto and back; both ends use it.

A batch is made of whole runs. Decoding checks every count and length of a message against
what it carries, so that nothing behind this file needs to: a message that does not add up
raises `BadMessage`. Frames are joined and cut as bytes, never looked into.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ledger.errors import BadMessage
from ledger.requests import (
    AddRun,
    InfoAnswer,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from ledger.wire import bookie_pb2 as pb

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest message on the wire; several times `ledger.entry.ENTRY_BYTES_MAX`."""

BOOKIE_KEY: Final = "dlog-bookie-bin"
"""Request metadata: the bookie that the client means. Another one at this address refuses."""

INCARNATION_KEY: Final = "dlog-incarnation-bin"
"""Response metadata of an Add stream: which start of the bookie answers (rule 75)."""

_RECOVERY: Final = 1
_EXPLICIT_LAC: Final = 2


def batch_message(batch: int, runs: Sequence[AddRun]) -> pb.AddBatch:
    """Return the message that carries *runs* as batch number *batch*."""
    message = pb.AddBatch(
        batch=batch,
        ledgers=[run.ledger_id for run in runs],
        keys=[run.key for run in runs],
        flags=[run.recovery * _RECOVERY + run.explicit_lac * _EXPLICIT_LAC for run in runs],
        counts=[len(run.entries) for run in runs],
        frames=_joined(runs),
    )
    for run in runs:
        message.entries.extend(run.entries)
        message.lengths.extend(run.lengths)
    return message


def batch_runs(message: pb.AddBatch) -> list[AddRun]:
    """Return the runs of a batch. Raises `BadMessage`."""
    ledgers, counts = list(message.ledgers), list(message.counts)
    entries, lengths, frames = list(message.entries), list(message.lengths), message.frames
    if not len(ledgers) == len(counts) == len(message.keys) == len(message.flags):
        raise BadMessage("AddBatch", "its columns of runs differ in length")
    if not sum(counts) == len(entries) == len(lengths):
        raise BadMessage("AddBatch", "its columns of entries differ in length")
    if sum(lengths) != len(frames):
        raise BadMessage("AddBatch", "its lengths do not add up to its frames")
    view = memoryview(frames)
    runs = []
    first, start = 0, 0
    for ledger_id, key, flags, count in zip(
        ledgers, message.keys, message.flags, counts, strict=True
    ):
        run_lengths = lengths[first : first + count]
        end = start + sum(run_lengths)
        run = AddRun(
            ledger_id,
            key,
            entries[first : first + count],
            run_lengths,
            frames if len(ledgers) == 1 else view[start:end],
            recovery=bool(flags & _RECOVERY),
            explicit_lac=bool(flags & _EXPLICIT_LAC),
        )
        runs.append(run)
        first, start = first + count, end
    return runs


def ack_message(first: int, last: int, statuses: Sequence[Status]) -> pb.AddAck:
    return pb.AddAck(
        first_batch=first,
        last_batch=last,
        statuses=[pb.Status.ValueType(status) for status in statuses],
    )


def ack_values(message: pb.AddAck) -> tuple[int, int, list[Status]]:
    """Return first batch, last batch and the statuses by run. Raises `BadMessage`."""
    return (
        message.first_batch,
        message.last_batch,
        [_status(status, "AddAck") for status in message.statuses],
    )


def read_request(query: ReadQuery) -> pb.ReadRequest:
    return pb.ReadRequest(
        ledger=query.ledger_id,
        key=query.key,
        first=query.first,
        last=query.last,
        bytes_max=query.bytes_max,
        fence=query.fence,
        wait_ms=query.wait_ms,
    )


def read_query(message: pb.ReadRequest) -> ReadQuery:
    return ReadQuery(
        message.ledger,
        message.key,
        message.first,
        message.last,
        bytes_max=message.bytes_max,
        fence=message.fence,
        wait_ms=message.wait_ms,
    )


def read_reply(answer: ReadAnswer) -> pb.ReadReply:
    return pb.ReadReply(
        status=pb.Status.ValueType(answer.status),
        entries=answer.entries,
        lengths=answer.lengths,
        frames=_as_bytes(answer.frames),
        considered=answer.considered,
        lac_proof=answer.lac_proof,
        fenced=answer.fenced,
    )


def read_answer(message: pb.ReadReply) -> ReadAnswer:
    """Return the answer of a reply. Raises `BadMessage`."""
    entries, lengths, frames = list(message.entries), list(message.lengths), message.frames
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


def lac_request(query: LacQuery) -> pb.ReadLacRequest:
    return pb.ReadLacRequest(ledger=query.ledger_id, key=query.key, fence=query.fence)


def lac_query(message: pb.ReadLacRequest) -> LacQuery:
    return LacQuery(message.ledger, message.key, fence=message.fence)


def lac_reply(answer: LacAnswer) -> pb.ReadLacReply:
    return pb.ReadLacReply(
        status=pb.Status.ValueType(answer.status),
        lac_proof=answer.lac_proof,
        fenced=answer.fenced,
        last_entry=answer.last_entry,
    )


def lac_answer(message: pb.ReadLacReply) -> LacAnswer:
    """Return the answer of a reply. Raises `BadMessage`."""
    return LacAnswer(
        _status(message.status, "ReadLacReply"),
        lac_proof=message.lac_proof,
        fenced=message.fenced,
        last_entry=message.last_entry,
    )


def info_reply(answer: InfoAnswer) -> pb.InfoReply:
    return pb.InfoReply(
        bookie=answer.bookie,
        incarnation=answer.incarnation,
        instance=answer.instance,
        read_only=answer.read_only,
    )


def info_answer(message: pb.InfoReply) -> InfoAnswer:
    return InfoAnswer(message.bookie, message.incarnation, message.instance, message.read_only)


def run_bytes(run: AddRun) -> int:
    """Return how much of a message *run* takes, roughly: its frames and its columns."""
    return len(run.frames) + 16 * len(run.entries) + len(run.key) + 32


def _status(number: int, message: str) -> Status:
    if number not in Status._value2member_map_ or number == Status.UNREACHABLE:
        raise BadMessage(message, f"status {number} is not known here")
    return Status(number)


def _joined(runs: Sequence[AddRun]) -> bytes:
    if len(runs) == 1:
        return _as_bytes(runs[0].frames)
    return b"".join(run.frames for run in runs)


def _as_bytes(frames: bytes | memoryview) -> bytes:
    return frames if isinstance(frames, bytes) else bytes(frames)
