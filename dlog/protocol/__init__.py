"""The decisions of the log layer: no clock, no I/O, no asyncio.

Machines, for what happens at once: `step(event, *, now)` returns what to do, `deadline()` when the
machine wants to be woken; `dlog.aio` does it.

    log_writer  what the writer of an open log does, and how each append ends
    roll        when a new segment begins, and in which order
    cursor      how a reader moves across segments
    proposals   what became of the commands that a replica appended

Procedures, for what happens one after the other (`ledger.protocol.procedure`):

    takeover    how a process becomes the writer of a log
    lifecycle   how a log is created, sealed, renamed and deleted
    unit_commit how a unit of a sink becomes part of a log
    manifest_steps, consumer_steps
                how the nodes of logs and of consumers are read and changed

Functions and values:

    accumulator, pending_batch, packer
                which records a writer takes, with which offset, and in which entry they go
    edits       what may be changed in a manifest, safe to repeat
    orphans, retention, seek, verification, record_trace
                what a ledger is of a log, what may be deleted, and where a record is
    command, client_table, replicated_state, snapshot
                a state machine that is replicated by a log
"""
