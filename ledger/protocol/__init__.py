"""The protocol apart from I/O: pure, deterministic machines; events in, effects out.

Each machine has one `step(event, *, now) -> list[Effect]` and one `deadline()`. A driver
(`ledger.driver` in production, `tests/simulation` in the simulator) executes the effects in
order, reports what happened as events, and decides nothing.
"""
