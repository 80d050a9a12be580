"""What a bookie says of itself, as messages of service `dlog.bookie.v1.Operator`."""

from collections.abc import Sequence

from bookie.collector.collection import LogState
from bookie.collector.collector import CollectorStatus, Run
from bookie.collector.garbage import Alarm
from bookie.entrylog.format import DIRECTORY, logs_of, path_of
from bookie.server.read_only import Measured
from bookie.storage.entry_trace import Traced
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.status import CacheStatus, JournalStatus, StorageStatus
from ledger.wire import bookie_pb2 as pb


def directory_message(measured: Measured) -> pb.DirectoryUsage:
    message = pb.DirectoryUsage(path=measured.path, place=measured.place)
    if measured.usage is not None:
        message.total_bytes = measured.usage.total_bytes
        message.free_bytes = measured.usage.free_bytes
    return message


def journal_message(status: JournalStatus) -> pb.JournalStatus:
    return pb.JournalStatus(
        path=status.path,
        mark_file=status.mark.journal_id,
        mark_offset=status.mark.offset,
        end_file=status.end.journal_id,
        end_offset=status.end.offset,
        files=status.files,
        bytes=status.size_bytes,
        full=status.full,
    )


def memtable_message(status: StorageStatus) -> pb.MemtableStatus:
    return pb.MemtableStatus(
        active_bytes=status.active_bytes,
        flushing_bytes=status.flushing_bytes,
        recent_bytes=status.recent_bytes,
        bytes_max=status.memtable_bytes_max,
    )


def cache_message(status: CacheStatus) -> pb.CacheStatus:
    return pb.CacheStatus(
        name=status.name,
        unit=status.unit,
        used=status.used,
        max=status.at_most,
        hits=status.hits,
        misses=status.misses,
    )


def entry_log_messages(
    directory: LedgerDirectory, seen: Sequence[LogState]
) -> list[pb.EntryLogStatus]:
    """Return all entry logs of *directory*, with what a collection has *seen* of them; asks the
    disk for their sizes. One that cannot be asked counts as damaged."""
    states = {state.log_id: state for state in seen}
    messages = []
    for log_id in logs_of(directory.disk.list(DIRECTORY)):
        try:
            size_bytes = _size_bytes(directory, log_id)
        except FileNotFoundError:
            continue  # compacted since it was listed
        except OSError:
            messages.append(pb.EntryLogStatus(log=log_id, state="damaged"))
            continue
        state = states.get(log_id)
        if directory.logs.is_writing(log_id):
            word, live_bytes = "writing", size_bytes
        elif state is None:
            word, live_bytes = "new", size_bytes
        else:
            word, live_bytes = "damaged" if state.damage else "ended", state.live_bytes
        messages.append(
            pb.EntryLogStatus(log=log_id, bytes=size_bytes, live_bytes=live_bytes, state=word)
        )
    return messages


def collector_message(status: CollectorStatus) -> pb.CollectorStatus:
    return pb.CollectorStatus(
        running=status.running.kind.value if status.running is not None else "",
        last=[run_message(run, status.now) for run in status.last],
        due=[
            pb.CollectorDue(kind=due.kind.value, in_s=due.in_s, threshold=due.share)
            for due in status.due
        ],
        suspended=status.suspended,
        waiting=status.waiting,
        alarms=_alarms(status.alarm),
        evicted=status.evicted,
        surplus=status.surplus,
    )


def run_message(run: Run, now: float) -> pb.CollectorRun:
    return pb.CollectorRun(
        kind=run.kind.value,
        ended_ago_s=now - run.ended_at,
        took_s=run.ended_at - run.began_at,
        ledgers=run.ledgers,
        evicted=run.evicted,
        logs=run.logs,
        bytes_freed=max(0, run.freed_bytes),
        bytes_moved=run.moved_bytes,
        failure=run.failure,
        suspended=run.suspended,
        damages=run.damages,
        waiting=run.waiting,
        alarms=_alarms(run.alarm),
    )


def _alarms(alarm: Alarm | None) -> list[pb.CollectorAlarm]:
    if alarm is None:
        return []
    return [pb.CollectorAlarm(kind=alarm.kind.value, reason=alarm.reason)]


def _size_bytes(directory: LedgerDirectory, log_id: int) -> int:
    file = directory.disk.open(path_of(log_id))
    try:
        return file.size()
    finally:
        file.close()


def trace_message(found: Traced) -> pb.TraceReply:
    return pb.TraceReply(
        ledger=found.ledger.value,
        fenced=found.fenced,
        last_entry=found.last_entry,
        doubts=found.doubts,
        copies=[
            pb.TracedCopy(
                place=copy.place,
                path=copy.path,
                offset=copy.offset,
                bytes=copy.size_bytes,
                damage=copy.damage,
                since_ms=copy.since_ms,
            )
            for copy in found.copies
        ],
    )
