"""The decisions of the log layer, as pure machines: no clock, no I/O, no asyncio.

    takeover    what a process does to become the writer of a log
    writing     what the writer of an open log does, and how each append ends
    accumulator      which records it takes, and with which offset
    packer      which records go into which entry, and when that is sent
    roll        when a new segment begins, and in which order
    edits       what may be changed in a manifest, safe to repeat
    sealing, renaming, dropping
                how a log ends, gets another name, is created and deleted
    manifest_steps, consumer_steps, renames
                how the nodes of logs and of consumers are read and changed
    procedure   what these five are: machines that do one thing after the other
    seek        where in a ledger a record is
    cursor      how a reader moves across segments
    command, client_table, proposals, replicated_state, snapshot
                a state machine that is replicated by a log, and what became of its commands

What decides over time is a machine (takeover, writing, roll, cursor, procedures):
`step(event, *, now)` returns what to do, `deadline()` when it wants to be woken; `dlog.aio` does
it. The others are functions and values.
"""
