"""Segments in object storage: the format of an object, the store, and reading it as a ledger."""
