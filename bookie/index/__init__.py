"""The index: where each entry of a ledger lies in the entry logs, and what the ledger is."""
