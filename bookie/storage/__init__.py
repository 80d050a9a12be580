"""The storage engine: memory, checkpoints, replay; what is held of each ledger."""
