"""Reading a log: places, chunks, readers, tails, barriers, consumers."""
