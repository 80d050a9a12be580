"""What a ledger is, and how a client writes, reads, fences and recovers one."""
