"""Entry logs: the entries of all ledgers, one after the other, written at checkpoints."""
