"""The protocol apart from I/O: pure, deterministic machines; events in, effects out.

Each machine has one `step(event, *, now) -> list[Effect]` and one `deadline()`. A driver
(`ledger.machine_loop` in production, `tests/simulation` in the simulator) executes the effects in
order, reports what happened as events, and decides nothing.
"""
